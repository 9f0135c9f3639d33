/* Owns the floor: a client that sends requests, throws the answers away, and tells the CPU time that this took. It stamps and
   parses nothing; what it finds is where an answer ends. Does not own what is asked, or how many chunks came.

       sink PORT STREAMS REQUESTS TOKENS        prints the seconds of CPU and of time */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FILES = 1 << 16, READ = 1 << 16, EVENTS = 512, PATIENCE_MS = 10000, TAIL = 5 };
static const char END[] = "0\r\n\r\n";
static char tails[MOST_FILES][TAIL]; /* the last bytes of each answer: its end may come in two reads */

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void ask(int fd, int number, int tokens) {
    char body[128], request[512];
    int length = snprintf(body, sizeof body, "{\"model\":\"bench\",\"prompt\":[%d],\"max_tokens\":%d,\"stream\":true}", number, tokens);
    int size = snprintf(request, sizeof request,
                        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                        "content-length: %d\r\n\r\n%s", length, body);
    memset(tails[fd], 0, TAIL);
    if (write(fd, request, size) != size) fail("write");
}

static int opened(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || fd >= MOST_FILES || connect(fd, (void *)&to, sizeof to)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int is_ended(int fd, const char *data, ssize_t size) {
    ssize_t kept = size < TAIL ? TAIL - size : 0;
    memmove(tails[fd], tails[fd] + TAIL - kept, kept);
    memcpy(tails[fd] + kept, data + size - (TAIL - kept), TAIL - kept);
    return !memcmp(tails[fd], END, TAIL);
}

int main(int count, char **words) {
    if (count != 5) return 2;
    int port = atoi(words[1]), streams = atoi(words[2]), requests = atoi(words[3]), tokens = atoi(words[4]);
    int poller = epoll_create1(0), sent = 0, done = 0;
    static char data[READ];
    struct epoll_event events[EVENTS];
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (; sent < streams && sent < requests; sent++) {
        int fd = opened(port);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
        ask(fd, sent, tokens);
    }
    while (done < requests) {
        int ready = epoll_wait(poller, events, EVENTS, PATIENCE_MS);
        if (ready <= 0) fail("the server is silent");
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            ssize_t size = read(fd, data, READ);
            if (size <= 0) fail("the server closed a connection");
            if (!is_ended(fd, data, size)) continue;
            done++;
            if (sent < requests) ask(fd, sent++, tokens);
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%.6f %.6f\n",
           used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6,
           to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) * 1e-9);
    return 0;
}
