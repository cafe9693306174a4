# Every target sets up what it needs in .venv by itself. Pass options with ARGS: make test ARGS="-k lanes -x"
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run test check format bench sim chaos soak docs clean

# $(call quietly,command): say nothing, unless the command fails.
quietly = log=$$(mktemp) && { $(1) >"$$log" 2>&1 || { cat "$$log" >&2; rm -f "$$log"; exit 1; }; } && rm -f "$$log"

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.stamp-run ## Start the server and print its address (ARGS="--port 0 --model openai/gpt-5")
	@exec $(BIN)/laneway serve $(ARGS)

test: $(VENV)/.stamp-browser ## Run the tests (ARGS="-k lanes -x")
	@$(BIN)/pytest -n 3 $(ARGS)

check: $(VENV)/.stamp-dev ## Check format, lint, types, layers, and simulate for five seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src tests
	$(BIN)/lint-imports --no-logo
	$(BIN)/laneway sim --seconds 5

format: $(VENV)/.stamp-dev ## Format the code and fix what can be fixed safely
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(VENV)/.stamp-dev ## Measure speed, also against others
	@$(BIN)/python -m bench $(ARGS)

sim: $(VENV)/.stamp-run ## Run the simulator (ARGS="--seed 123")
	@$(BIN)/laneway sim $(ARGS)

chaos: $(VENV)/.stamp-dev ## Kill real processes: inboxes 2,000 times, agents 500, servers 150, workers 200 (ARGS="--worker-kills 50 --seed 7")
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: $(VENV)/.stamp-dev ## Keep a server under load: 2,000 streams, 200 messages a second (ARGS="--seconds 3600")
	@$(BIN)/python -m tests.soak $(ARGS)

docs: $(VENV)/.stamp-dev ## Write the generated pages of docs/
	@$(BIN)/python -m docs.generate $(ARGS)

clean: ## Remove .venv, caches and build output
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@found=; for candidate in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        found=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "Laneway needs Python 3.11 or newer, and neither $(PYTHON) nor python3.11 to python3.14 is one." >&2; \
	    echo "Install it, or name it: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$found" --version)" >&2; \
	$(call quietly,"$$found" -m venv $(VENV))
	@$(call quietly,$(PIP) install --upgrade "pip>=25.1")
	@touch $@

$(VENV)/.stamp-run: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing Laneway into $(VENV) (a minute, the first time)" >&2
	@$(call quietly,$(PIP) install -e ".[all]")
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing Laneway and its development tools into $(VENV) (a minute, the first time)" >&2
	@$(call quietly,$(PIP) install -e ".[all]" --group dev)
	@touch $(VENV)/.stamp-run $@

# A browser for the dashboard's tests. Without one they fail, all others still run.
$(VENV)/.stamp-browser: $(VENV)/.stamp-dev
	@$(BIN)/python -m tests.browser.browser && touch $@ || true
