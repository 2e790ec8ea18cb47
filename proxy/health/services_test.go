package health

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"redial/config"
	"redial/proxy/intercept/lab"
)

var (
	web  = config.ServiceName{Namespace: "shop", Name: "web"}
	mail = config.ServiceName{Namespace: "shop", Name: "mail"}
)

// rig is Services under test, in a namespace of their own.
type rig struct {
	*Services
	t       *testing.T
	node    *lab.Host
	healthy atomic.Bool
	allowed []netip.Prefix
}

func run(t *testing.T, body func(t *testing.T, r *rig)) {
	t.Helper()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		log, _ := logtest.NewNullLogger()
		r := &rig{t: t, node: node}
		r.healthy.Store(true)
		r.Services = NewServices(ServicesConfig{
			Healthy:   r.healthy.Load,
			NodePorts: func() []netip.Prefix { return r.allowed },
			Log:       logrus.NewEntry(log),
		})
		t.Cleanup(r.Close)
		// The kernel installs the route of a new IPv6 address a moment later; until then its own node looks for it outside.
		require.Eventually(t, func() bool {
			routes, err := netlink.RouteGet(net.ParseIP("2001:db8:ff::1"))
			return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
		}, time.Minute, time.Millisecond)
		body(t, r)
	})
}

func (r *rig) sync(want ...Check) {
	r.t.Helper()
	require.Empty(r.t, r.Sync(want))
}

func url(host string, port int) string {
	return "http://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/any/path"
}

func (r *rig) refused(host string, port int) {
	r.t.Helper()
	_, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	assert.ErrorIs(r.t, err, syscall.ECONNREFUSED, "%s:%d", host, port)
}

func (r *rig) code(host string, port int) int {
	r.t.Helper()
	code, _, _ := get(r.t, url(host, port))
	return code
}

func TestServiceAnswers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			local   int
			healthy bool
			code    int
		}{{2, true, 200}, {2, false, 503}, {0, true, 503}, {0, false, 503}, {1, true, 200}} {
			r.sync(Check{Service: web, Port: 32000, LocalEndpoints: c.local})
			r.healthy.Store(c.healthy)
			for _, host := range []string{"127.0.0.1", "::1", "198.18.255.1", "2001:db8:ff::1"} {
				code, header, body := get(t, url(host, 32000))
				assert.Equal(t, c.code, code)
				assert.Equal(t, "application/json", header.Get("Content-Type"))
				assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
				assert.Equal(t, strconv.Itoa(c.local), header.Get("X-Load-Balancing-Endpoint-Weight"))
				assert.Equal(t, map[string]any{
					"service":        map[string]any{"namespace": "shop", "name": "web"},
					"localEndpoints": float64(c.local), "serviceProxyHealthy": c.healthy,
				}, body)
			}
		}
	})
}

// A load balancer keeps its connection, and sees the count change on it.
func TestCountChangesWithoutListeningAnew(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.sync(Check{Service: web, Port: 32000, LocalEndpoints: 1})
		conn, err := net.Dial("tcp", "127.0.0.1:32000")
		require.NoError(t, err)
		defer conn.Close()
		client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
		for _, local := range []int{1, 0, 3} {
			r.sync(Check{Service: web, Port: 32000, LocalEndpoints: local}, Check{Service: mail, Port: 32001})
			resp, err := client.Get("http://node/")
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			assert.Equal(t, strconv.Itoa(local), resp.Header.Get("X-Load-Balancing-Endpoint-Weight"))
		}
	})
}

func TestPortsCloseAndComeBack(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		// As often as it takes to see that a socket closed too late.
		for range 50 {
			r.sync(Check{Service: web, Port: 32000, LocalEndpoints: 1}, Check{Service: mail, Port: 32001})
			assert.Equal(t, 503, r.code("127.0.0.1", 32001), "mail has no endpoints")
			kept, err := net.Dial("tcp", "127.0.0.1:32000")
			require.NoError(t, err)

			r.sync(Check{Service: mail, Port: 32000, LocalEndpoints: 1}) // takes over web's number
			_, _, body := get(t, url("127.0.0.1", 32000))
			assert.Equal(t, map[string]any{"namespace": "shop", "name": "mail"}, body["service"])
			r.refused("127.0.0.1", 32001)
			require.NoError(t, kept.SetReadDeadline(time.Now().Add(time.Minute)))
			_, err = kept.Read(make([]byte, 1))
			assert.Error(t, err)
			assert.NotErrorIs(t, err, syscall.EAGAIN)
			kept.Close()

			r.sync()
			r.refused("127.0.0.1", 32000)
			r.sync(Check{Service: web, Port: 32000})
			r.sync()
		}
		r.sync(Check{Service: web, Port: 32000, LocalEndpoints: 1})
		r.Close()
		r.refused("127.0.0.1", 32000)
		r.sync(Check{Service: web, Port: 32000, LocalEndpoints: 1})
		r.refused("127.0.0.1", 32000)
	})
}

func TestOneTakenPortHarmsNoOther(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		other, err := net.Listen("tcp", ":32000")
		require.NoError(t, err)
		want := []Check{{Service: web, Port: 32000, LocalEndpoints: 1}, {Service: mail, Port: 32001, LocalEndpoints: 1}}
		for range 2 { // the second finds mail open already
			errs := r.Sync(want)
			require.Len(t, errs, 1)
			assert.Equal(t, want[0], errs[0].Check)
			assert.ErrorIs(t, &errs[0], syscall.EADDRINUSE)
			assert.ErrorContains(t, &errs[0], "health check port 32000 of shop/web")
			assert.Equal(t, 200, r.code("127.0.0.1", 32001))
		}
		other.Close()
		r.sync(want...)
		assert.Equal(t, 200, r.code("127.0.0.1", 32000))
	})
}

// The API server does not let two Services have one number, but nothing may depend on it.
func TestTwoServicesOfOneNumber(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		errs := r.Sync([]Check{{Service: web, Port: 32000, LocalEndpoints: 1}, {Service: mail, Port: 32000}})
		require.Len(t, errs, 1)
		assert.Equal(t, web, errs[0].Check.Service, "the first by name has it")
		r.sync(Check{Service: web, Port: 32000, LocalEndpoints: 1})
		assert.Equal(t, 200, r.code("127.0.0.1", 32000))
	})
}

func TestOnlySomeAddresses(t *testing.T) {
	prefixes := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	run(t, func(t *testing.T, r *rig) {
		check := Check{Service: web, Port: 32000, LocalEndpoints: 1}
		all := []string{"127.0.0.1", "::1", "198.18.255.1", "2001:db8:ff::1"}
		for _, c := range []struct {
			allowed []netip.Prefix
			open    []string
		}{
			{nil, all},
			{prefixes("198.18.0.0/15"), []string{"198.18.255.1"}},
			{prefixes("198.18.0.0/15", "2001:db8::/32"), []string{"198.18.255.1", "2001:db8:ff::1"}},
			{prefixes("0.0.0.0/0"), []string{"127.0.0.1", "198.18.255.1"}},
			{prefixes("::/0"), []string{"::1", "2001:db8:ff::1"}},
			{prefixes("0.0.0.0/0", "::/0"), all},
			{prefixes("198.18.255.1/32", "::/0"), []string{"198.18.255.1", "::1", "2001:db8:ff::1"}},
			{prefixes("127.0.0.0/8", "fe80::/10"), []string{"127.0.0.1"}},
			{nil, all},
		} {
			r.allowed = c.allowed
			r.sync(check)
			for _, host := range all {
				if slices.Contains(c.open, host) {
					assert.Equal(t, 200, r.code(host, 32000), "%s of %v", host, c.allowed)
				} else {
					r.refused(host, 32000)
				}
			}
		}
		for _, none := range [][]netip.Prefix{{}, prefixes("198.19.0.0/16")} {
			r.allowed = none
			errs := r.Sync([]Check{check})
			require.Len(t, errs, 1)
			assert.ErrorIs(t, &errs[0], errNoAddress)
			r.refused("127.0.0.1", 32000)
		}
		// An address that appears later is found by the next Sync.
		require.NoError(t, r.node.AddAddress("to-world", "198.19.0.1/24"))
		r.sync(check)
		assert.Equal(t, 200, r.code("198.19.0.1", 32000))
		r.refused("198.18.255.1", 32000)
	})
}

// One taken address is an error, but the others are served.
func TestOneTakenAddress(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		other, err := net.Listen("tcp4", "127.0.0.1:32000")
		require.NoError(t, err)
		r.allowed = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("198.18.0.0/15")}
		check := Check{Service: web, Port: 32000, LocalEndpoints: 1}
		errs := r.Sync([]Check{check})
		require.Len(t, errs, 1)
		assert.ErrorIs(t, errs[0].Err, syscall.EADDRINUSE)
		assert.Equal(t, 200, r.code("198.18.255.1", 32000))
		other.Close()
		r.sync(check)
		assert.Equal(t, 200, r.code("127.0.0.1", 32000))
	})
}

// A listener that breaks is replaced by the next Sync.
func TestBrokenListener(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		check := Check{Service: web, Port: 32000, LocalEndpoints: 1}
		r.sync(check)
		for _, l := range r.open[portKey{web, 32000}].listeners {
			l.Listener.Close()
			require.Eventually(t, l.broken.Load, time.Minute, time.Millisecond)
		}
		r.refused("127.0.0.1", 32000)
		r.sync(check)
		assert.Equal(t, 200, r.code("127.0.0.1", 32000))
	})
}
