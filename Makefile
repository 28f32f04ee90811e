# One door per chore. `make demo` and `make test` need Python 3.11 or later with venv (Debian, Ubuntu: python3-venv), make and
# a package index; scripts/venv says what is missing. PYTHON: by default the first of these that will do.
PYTHON ?= $(shell for name in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$name -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exec echo $$name; done; echo python3)
BIN := .venv/bin
# Bytecode is kept, whatever the environment says: a run of the tests starts Python some two hundred times.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all compiled compiled-dev test-compiled test-compiled-readers test-deploy rehearse-alerts image chart wheels release-check test-page test-clients shots test-postgres test-engines check
.PHONY: soak chaos chaos-share fuzz bench cost lab docs generated lock clean
.DEFAULT_GOAL := test

# What the demo runs on: the locked packages, and the sources by a path file, because an editable install fetches a build backend,
# which takes a quarter of the set-up. Bytecode is made of what is imported, when it is.
.venv/core.stamp: requirements.lock pyproject.toml
	@./scripts/venv '$(PYTHON)' .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -c "import sysconfig as s; open(s.get_path('purelib') + '/penstock-src.pth', 'w').write('$(CURDIR)/src\n')"
	touch $@

# xds-protos brings an older copy of the files of opentelemetry-proto, which is therefore installed once more, last.
LAST = sed -n '/^opentelemetry-proto==/,/[^\\]$$/p' requirements-dev.lock
AGAIN = --quiet --disable-pip-version-check --require-hashes --no-deps --force-reinstall -r /dev/stdin

.venv/dev.stamp: requirements-dev.lock .venv/core.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements-dev.lock
	$(LAST) | $(BIN)/pip install $(AGAIN)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

demo: $(if $(findstring --envoy,$(ARGS)),.venv/dev.stamp,.venv/core.stamp)
	$(BIN)/python -m penstock demo $(ARGS)

# On all cores, two processes for each, because tests wait for sockets and processes much of the time. `test`: the fast tests of every
# room, and the main job over real sockets; with ARGS only what they name. `test-all`: then the slow ones (marker `slow`), too.
WORKERS = $$($(BIN)/python -c "import os; print(2 * os.cpu_count())")
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
test: .venv/dev.stamp
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(PYTEST) -m "not static and not slow"
endif
test-all: test
	$(PYTEST) -m slow

# The same, its hot modules compiled to C (docs/decisions/0019), in .venv-compiled: needs a C compiler, and takes two to
# three minutes of CPU time, which all cores share. It tells how far it is.
COMPILED := .venv-compiled/bin
BUILD_NEEDS = $$($(COMPILED)/python -c "import tomllib; it = tomllib.load(open('pyproject.toml', 'rb')); \
	print(*it['build-system']['requires'], *it['tool']['hatch']['build']['targets']['wheel']['hooks']['custom']['dependencies'])")
compiled: requirements.lock
	@./scripts/venv '$(PYTHON)' .venv-compiled
	$(COMPILED)/pip install --quiet --disable-pip-version-check $(BUILD_NEEDS)
	@$(COMPILED)/python -c "import hatch_build, sys; sys.exit(hatch_build.missing_compiler())"
	$(COMPILED)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	rm -rf .venv-compiled/wheel
	mkdir .venv-compiled/wheel
	PENSTOCK_COMPILE=yes $(COMPILED)/python -c "import build_backend; build_backend.build_wheel('.venv-compiled/wheel')"
	$(COMPILED)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .venv-compiled/wheel/*.whl
	$(COMPILED)/penstock --version

compiled-dev: compiled
	$(COMPILED)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(LAST) | $(COMPILED)/pip install $(AGAIN)

TEST_COMPILED = $(COMPILED)/python -m pytest --numprocesses auto --dist worksteal -m "not timing"
test-compiled: compiled-dev
	$(TEST_COMPILED) $(or $(ARGS),tests/core tests/conformance tests/sim tests/http tests/gateway tests/batch tests/share tests/hostile tests/fuzz)

# The part of it that every change runs: the core, the readers of others' bytes, the hostile suites, each reader's outcomes
# beside those of its sources, and a gateway between mutated requests and answers. Six minutes, three of them to compile.
test-compiled-readers: compiled-dev
	$(TEST_COMPILED) tests/core tests/hostile tests/fuzz tests/http tests/gateway/openai tests/gateway/proxy/test_byte_path.py
	$(COMPILED)/python -m tests.fuzz --seed 0 --seconds 3
	$(COMPILED)/python -m tests.fuzz.wire --seconds 30

# What stands in deploy/, by the programs that users have for it: Helm, promtool, a Prometheus, Compose, systemd. Those that
# packages bring are installed first; what is missing is skipped and named. PENSTOCK_TEST_DEPLOY=required: a failure.
# A minute. The image's tests want `make image` before.
test-deploy: .venv/dev.stamp
	PYTHON=$(PYTHON) ./scripts/deploy/install
	$(BIN)/python -m pytest -rs --numprocesses auto --dist loadfile $(or $(ARGS),tests/deploy)

# Each alert fires once, and ends, in a real Prometheus, while real processes are killed, flooded and starved. Two minutes.
rehearse-alerts: .venv/dev.stamp
	PYTHON=$(PYTHON) ./scripts/deploy/install
	$(BIN)/python -m tests.deploy.rehearsal $(ARGS)

# The image, with docker or buildah: scripts/deploy/image says what can be chosen.
image:
	./scripts/deploy/image

# The chart as a package, and the wheels for a package index, into dist/.
chart:
	PYTHON=$(PYTHON) ./scripts/deploy/install
	./scripts/deploy/chart
wheels:
	./scripts/deploy/wheels

# Each step of a release that runs without the forge, once, over what is in dist/ (built first if it is empty: minutes).
release-check:
	PYTHON=$(PYTHON) ./scripts/deploy/install
	PYTHON=$(PYTHON) ./scripts/deploy/release-check

# The live page in a browser: CHROMIUM, one of the system's, or one that is fetched now.
test-page: .venv/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check playwright==1.65.2
	test -n "$(CHROMIUM)" || command -v chromium google-chrome || $(BIN)/playwright install --with-deps chromium
	$(BIN)/python -m pytest tests/page $(ARGS)

# The libraries that applications are written with: `openai` for Python and Node.js, `anthropic`, LangChain, LiteLLM and its
# proxy, in .venv-clients. What is missing fails here; `make test` skips it. Needs Node.js with npm.
CLIENTS = .venv-clients
PROXY_NEEDS = fastapi uvicorn python-multipart orjson backoff annotated_doc apscheduler redis mcp expression fastapi-sso soundfile pyjwt
$(CLIENTS)/stamp: requirements.lock requirements-dev.lock Makefile
	@./scripts/venv '$(PYTHON)' $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock -r requirements.lock
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: \
		anthropic==2.12.0 langchain-openai==1.7.3 litellm==1.106.2 "openai<3" $(PROXY_NEEDS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	npm install --silent --prefix $(CLIENTS)/node openai
	touch $@

test-clients: $(CLIENTS)/stamp
	PENSTOCK_TEST_CLIENTS=required $(CLIENTS)/bin/python -m pytest tests/clients $(ARGS)

# The pictures in docs/live-page.md, taken anew: two minutes, with the browser of `test-page`.
shots: .venv/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check playwright==1.65.2
	test -n "$(CHROMIUM)" || command -v chromium google-chrome || $(BIN)/playwright install --with-deps chromium
	$(BIN)/python scripts/live_page_shots $(ARGS)

# The tests that need a PostgreSQL server (Debian: apt-get install postgresql): here a missing one is a failure.
test-postgres: .venv/dev.stamp
	PENSTOCK_TEST_POSTGRES=required $(BIN)/python -m pytest -k postgres tests/conformance/test_store.py tests/batch tests/gateway/elect tests/gateway/share

# The gateway in front of real engines on this CPU: two vLLM and a llama.cpp, which are installed first where they are
# missing. PENSTOCK_ENGINES: where (~/.cache/penstock-engines). Takes about 10 minutes once, then 5 to 14; see docs/engines.md.
test-engines: .venv/dev.stamp
	PYTHON=$(PYTHON) ./scripts/engines/install
	$(BIN)/python -m pytest --capture=sys -vv tests/engines/real $(ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m pytest -m static tests/tidy

# Mixed load, faults, reloads, batches, hang-ups, for minutes or hours; memory, files and tasks told, and a verdict.
# ARGS="--minutes 120"; --python .venv-compiled/bin/python for the compiled build.
soak: .venv/dev.stamp
	$(BIN)/python benchmarks/soak.py $(ARGS)

# A million requests through the core in virtual time, with faults and the checkers: hours. ARGS="--requests 50000".
chaos: .venv/dev.stamp
	$(BIN)/python -m tests.core.long_chaos $(ARGS)

# The same at four gateways with clients, engines and the real election, that die and lose each other and the store.
.PHONY: chaos-gateways
chaos-gateways: .venv/dev.stamp
	$(BIN)/python -m tests.sim.long_fleet $(ARGS)

# libFuzzer on every reader of what comes from outside, a minute each. ARGS="body --seconds 600 --keep". CPython 3.11 to 3.13.
# The compiled build has inputs made of the kept ones: .venv-compiled/bin/python -m tests.fuzz --seed 1 --seconds 60, and tests.fuzz.wire.
fuzz: .venv/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check atheris==3.0.0
	$(BIN)/python -m tests.fuzz $(ARGS)

# The same for several gateways: deciders and edges that die, links that break, partitions. ARGS="--requests 1000000".
chaos-share: .venv/dev.stamp
	$(BIN)/python -m tests.share.long_gateways $(ARGS)

bench: .venv/dev.stamp
	$(BIN)/python benchmarks/run.py $(ARGS)

# What a request costs: Python calls, files and changes of file inside Penstock, and user instructions by valgrind, beside
# those of AGAINST (a `penstock` of another build, such as the last tag's). Two minutes; `--record` as calls.py says.
AGAINST =
cost: .venv/dev.stamp
	$(BIN)/python benchmarks/cost/calls.py 2>/dev/null
	$(BIN)/python benchmarks/cost/instructions.py $(AGAINST) $(BIN)/penstock $(wildcard $(COMPILED)/penstock) $(ARGS)

# The whole matrix of strange engines (bench/strange-engines.md): some ten minutes of CPU time; with ARGS a part of it.
lab: .venv/core.stamp
	$(BIN)/python -m bench lab --jobs $$($(BIN)/python -c "import os; print(os.cpu_count())") $(ARGS)

# The docs as a site, into site/; a link that leads nowhere is an error. Then every command of the quickstart is run.
docs: .venv/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check mkdocs==1.6.1 mkdocs-material==9.8.1
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)
	$(BIN)/python -m pytest tests/walkthrough

# The pages that are made of the code. Tests hold each to it.
generated: .venv/dev.stamp
	$(BIN)/python -m tests.tidy.configuration > docs/configuration.md
	$(BIN)/penstock schema > docs/penstock.schema.json
	$(BIN)/python -m tests.tidy.codes
	$(BIN)/python -m tests.tidy.readme
	$(BIN)/python -m tests.tidy.diagram > docs/diagram.md
	./scripts/deploy/chart_values

# Re-resolve the locked dependencies (needs pip-tools, which it installs beside the project).
lock:
	@./scripts/venv '$(PYTHON)' .venv-lock
	test -x .venv-lock/bin/pip-compile || .venv-lock/bin/pip install --quiet pip-tools
	./scripts/lock

clean:
	rm -rf .venv .venv-compiled .venv-clients .venv-lock .pytest_cache .mypy_cache .ruff_cache .hypothesis
