package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
)

// retryInterval is the time between attempts to bind, kube-proxy's.
const retryInterval = 5 * time.Second

// Config is what a Server is made of.
type Config struct {
	// Name says in logs and errors what the server is for.
	Name string
	// Addr is "address:port". An unspecified address of either family, or none, means all addresses of both families:
	// 0.0.0.0, too, as with kube-proxy. An empty Addr means that there is no server.
	Addr string
	// Handler answers.
	Handler http.Handler
	// HardFail makes an address that cannot be bound an error of Run. False means to try again every 5 s for ever.
	HardFail bool
	// Log is needed.
	Log *logrus.Entry
}

// Server answers at one address.
type Server struct {
	cfg    Config
	listen func(ctx context.Context, network, addr string) (net.Listener, error)
}

// New returns a Server that does nothing until Run is called.
func New(cfg Config) *Server {
	cfg.Log = cfg.Log.WithFields(logrus.Fields{"server": cfg.Name, "address": cfg.Addr})
	return &Server{cfg: cfg, listen: (&net.ListenConfig{}).Listen}
}

// Run serves until ctx ends, and returns nil then, with all connections closed. Any other end is an error, and happens
// only with HardFail.
func (s *Server) Run(ctx context.Context) error {
	if s.cfg.Addr == "" {
		return nil
	}
	failed := "" // what was last logged: the same failure is not worth a line every 5 s
	for {
		l, err := s.listen(ctx, "tcp", s.cfg.Addr)
		if err == nil {
			s.cfg.Log.WithField("address", l.Addr().String()).Info("listening")
			failed = ""
			err = s.serve(ctx, l)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case s.cfg.HardFail:
			return fmt.Errorf("%s server: %w: free the address or choose another; "+
				"without --bind-address-hard-fail the proxy serves regardless and keeps trying", s.cfg.Name, err)
		case err.Error() != failed:
			s.cfg.Log.WithError(err).Warnf("cannot serve, trying again every %v", retryInterval)
			failed = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryInterval):
		}
	}
}

// serve answers on l until ctx ends or l fails, and closes it. It returns why.
func (s *Server) serve(ctx context.Context, l net.Listener) error {
	h := HTTP(s.cfg.Handler, s.cfg.Log)
	defer h.Close() // with its connections
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	return h.Serve(l)
}
