package kube

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A peer that is gone without a word (power, a firewall that forgot the connection) is found by HTTP/2 pings, which
// client-go sends by default; here sooner than by default.
func TestDeadConnection(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	api := web(t)
	var protocols sync.Map
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocols.Store(r.Proto, true)
		api.serve(w, r)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	wire := newWire(t, srv.Listener.Addr().String())

	ca := filepath.Join(t.TempDir(), "kubeconfig")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, cert, 0o600))
	require.NoError(t, os.WriteFile(ca, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"https://`+wire.addr+`","certificate-authority":"`+file+`"}}],
		"contexts":[{"name":"c","context":{"cluster":"c"}}]}`), 0o600))
	client, err := Client(ClientConfig{Kubeconfig: ca, QPS: 10000, Burst: 10000})
	require.NoError(t, err)

	b := newRig(t, api, func(c *Config) { c.Client = client }).run()
	b.endpoints("default/web", "198.19.0.1:8080")
	_, http2 := protocols.Load("HTTP/2.0")
	require.True(t, http2)
	wire.cut()
	api.put("endpointslices", slice("web-1", "web", "198.19.0.2"))
	b.endpoints("default/web", "198.19.0.2:8080")
}

// wire carries connections, and can go on to carry nothing for those it has, without closing them.
type wire struct {
	addr string
	mu   sync.Mutex
	dead chan struct{}
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{addr: l.Addr().String(), dead: make(chan struct{})}
	var running sync.WaitGroup
	ended := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		close(ended)
		running.Wait()
	})
	carry := func(from, to net.Conn, dead chan struct{}) {
		defer from.Close()
		defer to.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			select {
			case <-dead:
				<-ended
				return
			default:
			}
			if err != nil {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp4", to)
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			dead := w.dead
			w.mu.Unlock()
			running.Go(func() { carry(in, out, dead) })
			running.Go(func() { carry(out, in, dead) })
		}
	})
	t.Cleanup(func() { w.cut() })
	return w
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.dead)
	w.dead = make(chan struct{})
}
