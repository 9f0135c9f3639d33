// Keeps the list of runs up to date, and sends a statement with Ctrl+Enter. Everything else works without a script.
"use strict";

const QUICK_MS = 2000, SLOW_MS = 15000;
const list = document.querySelector("#runs"), live = document.querySelector("#live");

const cardOf = (name) => list.querySelector(`[data-run="${CSS.escape(name)}"]`);

/** Put the fresh cards in place of those that changed, in their order; what was chosen stays chosen, and the focus where it was. */
function merge(fresh) {
  const cards = [...fresh.querySelectorAll("[data-run]")].map((card) => {
    const old = cardOf(card.dataset.run);
    if (!old || old.outerHTML === card.outerHTML) return old ?? card;
    card.querySelector("input").checked = old.querySelector("input").checked;
    const focused = [...old.querySelectorAll("input, a")].indexOf(document.activeElement);
    old.replaceWith(card);
    if (focused >= 0) card.querySelectorAll("input, a")[focused]?.focus();
    return card;
  });
  for (const old of [...list.children]) if (!cards.includes(old)) old.remove();
  cards.forEach((card, n) => { // what stays is not moved: it would lose the focus
    if (list.children[n] !== card) list.insertBefore(card, list.children[n] ?? null);
  });
  document.querySelector("#nothing").hidden = cards.length > 0;
}

async function refresh() {
  let wait = QUICK_MS;
  try {
    const answer = await fetch("/rows");
    if (!answer.ok) throw new Error(await answer.text());
    const fresh = document.createElement("template");
    fresh.innerHTML = await answer.text();
    merge(fresh.content);
    const [n, unread] = ["running", "reading"].map((state) => list.querySelectorAll(`[data-state=${state}]`).length);
    wait = n || unread ? QUICK_MS : SLOW_MS;
    say(unread ? `${unread} ${unread === 1 ? "run is" : "runs are"} still to be read.`
      : n ? `${n} ${n === 1 ? "run goes" : "runs go"} on; this page keeps itself up to date.` : "Nothing goes on.");
  } catch {
    wait = SLOW_MS;
    say("The page's server does not answer. What you see may be old; asking again.");
  }
  setTimeout(next, wait);
}

/** A reader is told what changed, and not every two seconds the same. */
function say(text) {
  if (live.textContent !== text) live.textContent = text;
}

function next() {
  if (document.hidden) document.addEventListener("visibilitychange", next, { once: true });
  else refresh();
}

if (list) setTimeout(next, list.querySelector("[data-live]") ? 500 : SLOW_MS);

document.querySelector("textarea")?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
});
