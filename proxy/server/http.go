package server

import (
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// What one client may take. Probes are small and prompt; a profile takes as long as was asked for, which net/http/pprof adds
// to writeTimeout itself.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = time.Minute // a scrape of some 10,000 Services over a slow link
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
)

// HTTP returns a server that no client can hold up for long. What net/http has to say about clients is logged at the
// debug level.
func HTTP(h http.Handler, entry *logrus.Entry) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(debugWriter{entry}, "", 0),
	}
}

type debugWriter struct{ log *logrus.Entry }

func (w debugWriter) Write(line []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
