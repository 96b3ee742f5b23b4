# Plain cargo commands under short names. `make` lists them.
CARGO ?= cargo
.DEFAULT_GOAL := help
.PHONY: help build demo retry-demo conformance hostile two-hosts test crash crash-demo soak mutants bench fuzz check clean

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '%-18s %s\n' "$$target" "$$text"; done

build: ## build target/release/mediator
	$(CARGO) build --locked --release

demo: ## a lab on this machine for half a minute, killed in the middle (KEEP=1 keeps its folder)
	$(CARGO) build --locked
	@scripts/demo

retry-demo: ## what becomes of a request that is sent again, with counts (10 s)
	$(CARGO) build --locked
	@scripts/retry-demo

conformance: ## check what is promised about idempotency keys, route by route, on daemons of its own (20 s)
	$(CARGO) build --locked
	@scripts/conformance --serve target/debug/mediator

hostile: ## send daemons of its own 1,600 hostile requests while others are served (docs/hostile.md, 45 s)
	$(CARGO) build --locked
	@scripts/hostile --quiet --serve target/debug/mediator

fuzz: ## contracts and JSON that nobody would write, for SECONDS seconds (60); SEED=n repeats a run (tests/fuzz)
	FUZZ_SECONDS=$(or $(SECONDS),60) FUZZ_SEED=$(SEED) $(CARGO) test --locked --test fuzz

two-hosts: ## a daemon and an agent on two hosts, and a network that fails: slow, lossy, cut, healed (60 s)
	$(CARGO) build --locked
	@scripts/two-hosts || [ $$? = 77 ]

test: ## run the tests: plain `cargo test`, nothing else is needed
	$(CARGO) test --locked

crash: ## kill the daemon at every named point, more than a thousand times (tests/crash/README.md)
	$(CARGO) test --locked --features failpoints --test crash --test crash-demo -- --nocapture

crash-demo: ## what a kill leaves, and what a restart and a retry make of it, in tables (docs/crash-recovery.md, 20 s)
	@$(CARGO) test --quiet --locked --features failpoints --test crash-demo

soak: ## random kills of the daemon and agents under load, for DURATION seconds (60); SEED=n repeats a run
	SOAK_SECONDS=$(or $(DURATION),60) SOAK_SEED=$(SEED) \
		$(CARGO) test --locked --features failpoints --test crash -- --nocapture soak::

mutants: ## remove one guard at a time: some test must turn red (15 min; ONLY=name,name for some; tests/mutants/README.md)
	@scripts/mutants --only '$(ONLY)'

bench: ## measure the daemon against its own ceiling (docs/performance.md); ONLY=submit one group, QUICK=1 fewer rounds
	@ONLY="$(ONLY)" QUICK="$(QUICK)" $(CARGO) bench --quiet --locked --bench rates

check: ## what CI asks for: format, clippy, tests, documentation
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) test --locked
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps

clean: ## remove what was built
	$(CARGO) clean
