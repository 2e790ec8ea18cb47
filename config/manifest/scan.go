package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"redial/config"
)

// maxFile bounds what is read into memory at once.
const maxFile = 64 << 20

// file is what is known about one manifest.
type file struct {
	stamp stamp
	// young: the file was written so shortly before it was read that a later write could have left the stamp the same, as
	// time stamps are as coarse as the file system likes. It is read once more by the next scan.
	young bool
	// sum of the bytes that content was made of; 0 before the first.
	sum uint64
	// deferred counts the scans that found the file being written.
	deferred int
	// err is set while the file cannot be read; the rest is then what it was before.
	err error
	content
}

// origin is where the version of an object that is in force came from.
type origin struct {
	path string
	hash uint64
}

// scan brings the Tracker up to what the directory says. again asks for another scan soon, because a file was being
// written. The error is about the directory itself, and then nothing was changed.
//
// Files are read one after the other in the order in which they win, and each object is handed on before the next file is
// read, so that only one file's objects are in memory. Everything is set before anything is deleted: what moves
// between files or slices is never missing.
func (s *Source) scan(ctx context.Context, w *watch, first bool) (again bool, err error) {
	defer s.looks.Add(1)
	began := time.Now()
	t, err := walk(s.dir, w.visit)
	s.walked = time.Since(began)
	if err != nil {
		return false, err
	}
	w.keep(t.dirs)
	p := pass{s: s, claimed: map[key]place{}, bad: map[key]int{}, undecodable: map[string][]int{}}
	for path := range s.files {
		if dir, ok := t.hides(path); ok {
			p.hidden(dir)
		} else if _, ok := t.files[path]; !ok {
			delete(s.files, path)
		}
	}
	for path, found := range t.files {
		if s.files[path] == nil {
			s.files[path] = &file{}
		}
		if found.err != nil {
			s.files[path].err = found.err
		}
	}
	for dir, err := range t.unreadable {
		_, hides := p.dirs[dir]
		// A symlink that leads nowhere, and never led to a manifest, is none of ours.
		if hides || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ELOOP) {
			p.problems = append(p.problems, Problem{File: dir, Message: err.Error(), Retained: hides})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		if ctx.Err() != nil {
			return false, nil
		}
		f := s.files[path]
		if found, ok := t.files[path]; ok && found.err == nil {
			if s.refresh(path, f, found.info, first || p.wants(f)) {
				again = true
			}
		}
		p.file(path, f)
	}
	if again {
		// An object missing from one file may be in the one that is being written.
		return true, nil
	}
	p.finish()
	return false, nil
}

// refresh reads the file if it has changed, or if force asks for its objects. It reports whether the file is being written
// and was left for later.
func (s *Source) refresh(path string, f *file, info fs.FileInfo, force bool) (later bool) {
	now := stampOf(info)
	if f.err == nil && f.stamp == now && !f.young && !force {
		return false
	}
	const most = int(patience / settle)
	if age := time.Since(info.ModTime()); f.stamp != now && !force && age >= 0 && age < settle && f.deferred < most {
		f.deferred++
		return true
	}
	f.deferred = 0
	data, info, err := read(path)
	if err != nil {
		f.err = err
		return false
	}
	f.err, f.stamp = nil, stampOf(info)
	f.young = time.Since(info.ModTime()).Abs() < 2*time.Second
	sum := maphash.Bytes(seed, data)
	if sum == f.sum && !force {
		return false
	}
	before := f.content
	f.sum, f.content = sum, decodeFile(path, data)
	for _, what := range f.skipped {
		if !slices.Contains(before.skipped, what) {
			s.log.WithFields(map[string]any{"file": path, "object": what}).Info("object of another kind skipped")
		}
	}
	return false
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

// place is where an object is defined.
type place struct {
	path     string
	document int
}

// pass is one scan's view of who defines what.
type pass struct {
	s *Source
	// claimed are the objects that are in force after this scan.
	claimed map[key]place
	// bad are the objects of which only a spoilt version was found, and undecodable the files in which something could not
	// even be recognised: both by their problems' indexes.
	bad         map[key]int
	undecodable map[string][]int
	problems    []Problem
	// dirs are the unreadable directories with files that are known from before.
	dirs map[string]struct{}
}

func (p *pass) hidden(dir string) {
	if p.dirs == nil {
		p.dirs = map[string]struct{}{}
	}
	p.dirs[dir] = struct{}{}
}

// wants reports whether the file has an object that is to be handed on now although the file has not changed: another
// file, which used to define it, does so no more.
func (p *pass) wants(f *file) bool {
	return slices.ContainsFunc(f.entries, func(e entry) bool {
		_, taken := p.claimed[e.key]
		return e.problem == "" && !taken && p.s.applied[e.key].hash != e.hash
	})
}

// file applies what one file says.
func (p *pass) file(path string, f *file) {
	if f.err != nil {
		p.problems = append(p.problems, Problem{File: path, Message: f.err.Error(), Retained: len(f.entries) > 0})
	}
	for i := range f.entries {
		e := &f.entries[i]
		problem := Problem{File: path, Document: e.document, Message: e.problem}
		if e.key != (key{}) {
			problem.Object = e.key.String()
		}
		old, inForce := p.s.applied[e.key]
		at, taken := p.claimed[e.key]
		switch {
		case e.problem != "" && e.key == (key{}):
			p.undecodable[path] = append(p.undecodable[path], len(p.problems))
		case e.problem != "" && !taken && inForce && old.path == path:
			p.claimed[e.key] = place{path, e.document}
			problem.Retained = true
		case e.problem != "":
			if _, ok := p.bad[e.key]; !ok {
				p.bad[e.key] = len(p.problems)
			}
		case taken:
			problem.Message = fmt.Sprintf("defined already in %s, document %d: that definition is used", at.path, at.document)
		default:
			p.claimed[e.key] = place{path, e.document}
			switch {
			case inForce && old.hash == e.hash:
				p.s.applied[e.key] = origin{path, e.hash}
			case e.object != nil:
				set(p.s.tracker, e.object)
				p.s.applied[e.key] = origin{path, e.hash}
			}
			e.object = nil
			continue
		}
		e.object = nil
		p.problems = append(p.problems, problem)
	}
}

// finish deletes what nothing defines any more, except where the definition may be in what could not be read.
func (p *pass) finish() {
	for k, o := range p.s.applied {
		if _, ok := p.claimed[k]; ok {
			continue
		}
		if i, ok := p.bad[k]; ok {
			p.problems[i].Retained = true
			p.s.applied[k] = origin{p.problems[i].File, o.hash}
		} else if spoilt := p.undecodable[o.path]; len(spoilt) > 0 {
			for _, i := range spoilt {
				p.problems[i].Retained = true
			}
		} else {
			remove(p.s.tracker, k)
			delete(p.s.applied, k)
		}
	}
	p.s.report(p.problems)
}

func set(t *config.Tracker, object any) {
	switch o := object.(type) {
	case *v1.Service:
		t.SetService(o)
	case *discoveryv1.EndpointSlice:
		t.SetSlice(o)
	//lint:ignore SA1019 see addObject
	case *v1.Endpoints:
		t.SetEndpoints(o)
	}
}

func remove(t *config.Tracker, k key) {
	name := config.ServiceName{Namespace: k.namespace, Name: k.name}
	switch k.kind {
	case kindService:
		t.DeleteService(name)
	case kindSlice:
		t.DeleteSlice(k.namespace, k.name)
	case kindEndpoints:
		t.DeleteEndpoints(name)
	}
}

// hides returns the unreadable directory a path is in.
func (t *tree) hides(path string) (string, bool) {
	for dir := range t.unreadable {
		if strings.HasPrefix(path, dir+string(filepath.Separator)) {
			return dir, true
		}
	}
	return "", false
}

func compareProblems(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document), cmp.Compare(a.Message, b.Message))
}
