VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
# What the proxy needs (iptables), what the tests are written with, and a C compiler for the race detector.
PACKAGES    := iptables nftables iproute2 conntrack procps curl netcat-openbsd gcc libc6-dev dnsmasq-base bind9-dnsutils

.PHONY: build demo test test-cluster test-faults lint bench bench-udp bench-data bench-failover deps clean

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/redial ./cmd/redial

demo: deps build
	@bin/redial demo

test: deps lint
	go test -race -timeout 10m ./...

# Against a real control plane, which the first time takes a quarter of an hour to build.
test-cluster: PACKAGES += etcd-server
test-cluster: deps
	binaries=$$(cmd/redial/cluster/kubernetes/build.sh) && \
	REDIAL_CLUSTER_BINARIES=$$binaries go test -race -count=1 -parallel 8 -timeout 20m ./cmd/redial/cluster/

# Random faults against steady clients: for FAULTS_FOR, from FAULTS_SEED on, of the kinds FAULTS_ONLY. Each failure says how to
# see it again.
test-faults: deps
	FAULTS_FOR=$${FAULTS_FOR:-30m} go test -race -count=1 -v -timeout 0 -run '^TestFaults$$' ./cmd/redial

lint:
	@files=$$(gofmt -l cmd proxy iptables balancer config); [ -z "$$files" ] || { echo "not gofmt-clean: $$files"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

bench:
	go test -run '^$$' -bench . -benchmem ./...

# redial beside kernel DNAT and nginx, which is measured if it is installed (nginx-light and libnginx-mod-stream).
bench-udp: deps build
	CGO_ENABLED=0 go build -trimpath -o bin/redial-bench ./cmd/redial-bench
	@bin/redial-bench udp

# The same for TCP, with HAProxy as well (haproxy).
bench-data: deps build
	CGO_ENABLED=0 go build -trimpath -o bin/redial-bench ./cmd/redial-bench
	@bin/redial-bench data

# What clients notice of backends that fail, beside the same.
bench-failover: deps build
	CGO_ENABLED=0 go build -trimpath -o bin/redial-bench ./cmd/redial-bench
	@bin/redial-bench failover

# Installs what is missing, or says what it is.
deps:
	@missing=; for p in $(PACKAGES); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
		echo "missing Debian packages: run  sudo apt-get install$$missing"; exit 1; \
	fi

clean:
	rm -rf bin
