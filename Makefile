VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
# What the proxy needs (iptables), what the tests are written with, and a C compiler for the race detector.
PACKAGES    := iptables nftables iproute2 conntrack procps curl netcat-openbsd gcc libc6-dev dnsmasq-base bind9-dnsutils
# What redial is measured beside, and what counts system calls.
PEERS       := nginx libnginx-mod-stream haproxy strace

.PHONY: build demo test test-cluster test-faults lint bench bench-data bench-udp bench-failover bench-scale bench-build bench-go deps clean

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/redial ./cmd/redial

demo: deps build
	@bin/redial demo

test: deps lint
	go test -race -parallel 6 -timeout 10m ./...

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

# What is measured beside others, all in one machine's time and namespaces: half an hour. Each part has a target of its own,
# and BENCH is for flags: make bench-data BENCH='--rounds 3 --loads idle'.
bench: bench-data bench-udp bench-failover

# TCP: kernel DNAT, nginx, HAProxy, io.Copy, redial.
bench-data: bench-build
	@bin/redial-bench data $(BENCH)

# The same for UDP.
bench-udp: bench-build
	@bin/redial-bench udp $(BENCH)

# What clients notice of backends that fail.
bench-failover: bench-build
	@bin/redial-bench failover $(BENCH)

# Up to 30,000 Services: start, changes, first packets, CPU and memory, beside linear rules, and kube-proxy if KUBE_PROXY is
# its program.
bench-scale: bench-build
	@bin/redial-bench scale --kube-proxy "$(KUBE_PROXY)" $(BENCH)

# Peers that are missing and cannot be installed are named and left out.
bench-build: deps build
	-@$(MAKE) --no-print-directory deps PACKAGES="$(PEERS)"
	CGO_ENABLED=0 go build -trimpath -o bin/redial-bench ./cmd/redial-bench

# Pieces of the code, by themselves.
bench-go:
	go test -run '^$$' -bench . -benchmem ./...

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
