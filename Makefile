# `make help` lists the targets. Each target first installs the packages that it needs.

TARGET := $(or $(CARGO_TARGET_DIR),target)
# A target depends on the mark of its group of scripts/setup.sh. The name of the mark has a
# digest of the scripts, so that a change of them runs setup again.
SETUP_KEY := $(shell cat scripts/setup.sh $$(find scripts/clients scripts/applications scripts/rivals -type f | sort) | sha256sum | cut -c1-16)
installed = $(TARGET)/.setup-$(1)-$(SETUP_KEY)
BUILD := cargo build --release --locked
PROGRAMS := $(TARGET)/release
# Namespaces and eBPF need root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# rustup's programs, also in a shell that is older than the installation of Rust.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help setup build dist packages demo check test test-long test-kernels test-upgrade \
	test-operator lint bench clean

help:
	@echo 'make setup   install the packages for building, the demo and the tests (Debian 12)'
	@echo 'make build   build $(PROGRAMS)/prism, and prism-lab beside it'
	@echo 'make dist    build $(TARGET)/dist/prism for production: optimized as a whole and'
	@echo '             profile-guided, by labs that need root; some 20 minutes'
	@echo 'make packages   make dist, then .deb, .rpm and tarball in $(TARGET)/packages;'
	@echo '             with PROFILE=release of the plain build instead, in a few minutes'
	@echo 'make demo    a lab of three backends serves real clients, under a minute'
	@echo 'make check   the tests that need no privilege, and the demo as root: some 5 minutes'
	@echo 'make test    the tests of nodes, switch and clients, and those of make check; as root, or'
	@echo '             those that need privilege are skipped; at most 20 minutes'
	@echo 'make test-long      packages, migrations, benchmarks, the page, long forms of tests, and'
	@echo '             make test-kernels with a hunt for rare faults: some 90 minutes'
	@echo 'make test-kernels   tests on Debian 6.1 and 6.12 kernels, emulated: some 17 minutes'
	@echo 'make test-upgrade   a cluster is upgraded under load from the previous release, which is'
	@echo '             built from the history of this repository; some 8 minutes'
	@echo 'make test-operator  an operator installs the previous release on Debian 12 hosts in'
	@echo '             namespaces, and upgrades it under load; some 2 minutes and the builds'
	@echo 'make lint    formatting, clippy, fuzz targets, places of unsafe code, documents, figures,'
	@echo '             and the shape of the source'
	@echo 'make bench   make dist, then time of a hand-off, and of a packet in the switch'
	@echo 'make clean   remove all build results'

setup:
	@scripts/setup.sh tests

$(call installed,%):
	@scripts/setup.sh $*
	@mkdir -p $(TARGET) && rm -f $(TARGET)/.setup-$*-* && touch $@

build: $(call installed,build)
	$(BUILD)

dist: $(call installed,dist)
	scripts/dist.sh

# The program of a release is that of `make dist`.
PROFILE := dist
packages: $(call installed,packages) $(PROFILE)-programs
	scripts/packages.sh $(TARGET)/$(PROFILE) $(TARGET)/packages

.PHONY: dist-programs release-programs
dist-programs: dist

release-programs: $(call installed,build)
	$(BUILD) --features prism/otlp

demo: $(call installed,demo)
	$(BUILD)
	$(SUDO) $(PROGRAMS)/prism-lab demo

check: $(call installed,tests)
	python3 scripts/test.py --tier check

test: $(call installed,tests)
	python3 scripts/test.py --tier test

# The last line hunts for a soft lockup of kernel 6.1 that was seen once in this row.
test-long: $(call installed,kernels) $(call installed,applications)
	python3 scripts/test.py --tier long
	$(SUDO) python3 scripts/applications.py
	python3 scripts/kernels.py
	python3 scripts/kernels.py --one-by-one --repeat 3 --set PRISM_NETEM_ROUNDS=50 'prism netem'

test-kernels: $(call installed,kernels)
	python3 scripts/kernels.py

test-upgrade: $(call installed,tests)
	previous=$$(scripts/previous.sh) && PRISM_PREVIOUS=$$previous/prism \
		python3 scripts/test.py every_process_restarts previous_release

test-operator: $(call installed,tests) release-programs
	previous=$$(scripts/previous.sh) && scripts/test_operator.py $$previous $(PROGRAMS)

# Fuzz targets are checked with the workspace's profile, so that both share dependencies. Nothing
# is linked, so libFuzzer need not exist.
lint: $(call installed,lint)
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --features prism/otlp --locked -- -D warnings
	cargo clippy --release -p prism --locked -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/none cargo check --release --locked --config Cargo.toml \
		--manifest-path fuzz/Cargo.toml --target-dir $(TARGET)
	scripts/check-unsafe.sh
	scripts/check_docs.py
	scripts/check_shape.py
	python3 scripts/bench_report.py --check

# The benchmarks measure the production build.
bench: dist
	$(SUDO) $(TARGET)/dist/prism-lab bench switch
	$(SUDO) $(TARGET)/dist/prism-lab bench handoff

clean:
	cargo clean
