// Package admin is the local API of a running proxy: HTTP with JSON over a unix socket that only its owner may open.
//
//	GET /status    what the proxy is doing
//
// The socket doubles as the mark of a running instance: [Listen] fails while another process answers on it. It carries
// whatever value the server is given; the types belong to package proxy and the command.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// requestTimeout bounds one exchange over the socket, which never leaves the machine.
const requestTimeout = 10 * time.Second

// ErrRunning is returned by Listen when another process answers on the socket.
var ErrRunning = errors.New("another instance is running")

// Listen opens the socket, replacing one that a dead process left. Missing folders are made.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	// Permissions are those of the moment of bind(2): a chmod afterwards would come too late.
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EACCES) {
		return nil, fmt.Errorf("admin socket: %w: give --admin-socket a path that this user may write to", err)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	info, statErr := os.Lstat(path)
	if statErr != nil || info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("admin socket %s: there is a file of that name that is no socket", path)
	}
	conn, dialErr := net.DialTimeout("unix", path, time.Second)
	switch {
	case dialErr == nil:
		conn.Close()
		return nil, fmt.Errorf("admin socket %s: %w: stop it first, or give this one its own --admin-socket", path, ErrRunning)
	case !errors.Is(dialErr, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("admin socket %s: %w", path, dialErr)
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("admin socket: removing the one a dead process left: %w", err)
	}
	return net.Listen("unix", path)
}

// Serve answers requests on l until ctx ends, and closes it. status is called for each request.
func Serve(ctx context.Context, l net.Listener, status func() any) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		// An error means that the reader has gone; nobody is left to tell.
		_ = enc.Encode(status())
	})
	server := &http.Server{Handler: mux, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin API: %w", err)
	}
	return nil
}

// Get asks the instance behind the socket for its status and decodes it into out.
func Get(ctx context.Context, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://redial/status", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no proxy answers on %s: is it running, and with this --admin-socket?", path)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: %w: only root, or the user who runs the proxy, may ask", path, os.ErrPermission)
	case err != nil:
		return fmt.Errorf("asking the proxy: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking the proxy: %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("reading the proxy's answer: %w", err)
	}
	return nil
}
