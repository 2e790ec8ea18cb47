package manifest

import (
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxFile bounds what is read into memory at once.
const maxFile = 64 << 20

// loaded is a file as it was read.
type loaded struct {
	stamp stamp
	// young: the file was written so shortly before it was read that a later write could have left the stamp the same, as
	// time stamps are as coarse as the file system likes. It is read once more by the next scan.
	young bool
	// sum of the bytes; 0 before the first reading.
	sum uint64
	// same tells that the bytes are those already known, and were not decoded.
	same bool
	content
	err error
}

// load reads and decodes a file, unless its bytes have the known sum.
func load(path string, known uint64) loaded {
	data, info, err := read(path)
	if err != nil {
		return loaded{err: err}
	}
	l := loaded{
		stamp: stampOf(info),
		young: time.Since(info.ModTime()).Abs() < 2*time.Second,
		sum:   maphash.Bytes(seed, data),
	}
	if l.same = l.sum == known; !l.same {
		l.content = decodeFile(path, data)
	}
	return l
}

// read returns the content with the state of exactly that file, which may have been replaced since it was looked at.
func read(path string) ([]byte, fs.FileInfo, error) {
	// Non-blocking, in case it has become a named pipe.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &fs.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("the file has more than %d bytes: split it", maxFile)}
	}
	return data, info, err
}

// ahead loads files on all cores, some of them ahead of a scan, which takes them in order: parsing YAML is nearly all
// the work of a cold start.
type ahead struct {
	results map[string]chan loaded
	// room bounds how many are loaded and not yet taken, and so the memory.
	room    chan struct{}
	done    <-chan struct{} // ends the loading
	cancel  context.CancelFunc
	workers sync.WaitGroup
}

// loadAhead starts to load the files in the order of paths; known are the sums of what is known of each. The caller takes
// them in the same order, and has to stop it.
func loadAhead(ctx context.Context, paths []string, known []uint64) *ahead {
	ctx, cancel := context.WithCancel(ctx)
	workers := min(runtime.GOMAXPROCS(0), len(paths))
	a := &ahead{results: make(map[string]chan loaded, len(paths)), room: make(chan struct{}, 2*workers), done: ctx.Done(), cancel: cancel}
	for _, path := range paths {
		a.results[path] = make(chan loaded, 1)
	}
	var next atomic.Int64
	for range workers {
		a.workers.Go(func() {
			for {
				// Room comes before the turn: so the file that is taken next always has room.
				select {
				case a.room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				i := int(next.Add(1)) - 1
				if i >= len(paths) {
					return
				}
				a.results[paths[i]] <- load(paths[i], known[i])
			}
		})
	}
	return a
}

// take waits for a file; ok is false for one that was not asked for, and for any once the context has ended.
func (a *ahead) take(path string) (l loaded, ok bool) {
	result, ok := a.results[path]
	if !ok {
		return loaded{}, false
	}
	select {
	case l = <-result:
		<-a.room
		return l, true
	case <-a.done:
		return loaded{}, false
	}
}

// stop ends the loading and waits for it.
func (a *ahead) stop() {
	a.cancel()
	a.workers.Wait()
}
