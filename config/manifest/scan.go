package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"redial/config"
)

// file is what is known about one manifest.
type file struct {
	// loaded is what was read last; its err is set while the file cannot be read, and the rest is then what it was before.
	loaded
	// deferred counts the scans that found the file being written.
	deferred int
	// missing: the last scan did not find the file. It may be about to be replaced, so one more scan is made.
	missing bool
}

// origin is where the version of an object that is in force came from.
type origin struct {
	path string
	hash uint64
	// flawed tells that the version in force is not a good one.
	flawed bool
}

// scan brings the Tracker up to what the directory says. again asks for another scan soon, because a file was being
// written. The error is about the directory itself, and then nothing was changed.
//
// Files are gone through in the order in which they win, and the objects of each are handed on before the next, so that
// only a few files' objects are in memory. Everything is set before anything is deleted: what moves between files or slices
// is never missing.
func (s *Source) scan(ctx context.Context, w *watch, first bool) (again bool, err error) {
	defer s.looks.Add(1)
	began := time.Now()
	t, err := walk(s.dir, w.visit)
	s.walked = time.Since(began)
	if err != nil {
		s.settled = false // the problem that is reported now has to go again
		return false, err
	}
	w.keep(t.dirs)
	p := pass{s: s, claimed: map[key]place{}, bad: map[key]int{}, undecodable: map[string][]int{}}
	quiet := s.settled
	s.settled = false
	for path := range s.files {
		if dir, ok := t.hides(path); ok {
			p.hidden(dir)
		} else if _, ok := t.files[path]; !ok {
			quiet = false
			again = s.vanished(path) || again
		}
	}
	for path, found := range t.files {
		f := s.files[path]
		if f == nil {
			f, quiet = &file{}, false
			s.files[path] = f
		}
		f.missing = false
		if found.err != nil {
			quiet = quiet && f.err != nil && f.err.Error() == found.err.Error()
			f.err = found.err
		}
	}
	for dir, err := range t.unreadable {
		_, hides := p.dirs[dir]
		// A symlink that leads nowhere, and never led to a manifest, is none of ours.
		if hides || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ELOOP) {
			p.problems = append(p.problems, Problem{File: dir, Message: err.Error(), Retained: hides})
		}
	}
	dirProblems := len(p.problems)
	paths := slices.Sorted(maps.Keys(s.files))
	var due []string
	var known []uint64
	for _, path := range paths {
		if found, ok := t.files[path]; ok && found.err == nil {
			switch s.files[path].state(found.info, first) {
			case changed:
				due, known = append(due, path), append(known, s.files[path].sum)
			case unfinished:
				again = true
			}
		}
	}
	if quiet && len(due) == 0 && !again && dirProblems == 0 {
		s.settled = true
		return false, nil
	}
	loads := loadAhead(ctx, due, known)
	defer loads.stop()
	for _, path := range paths {
		f := s.files[path]
		if l, ok := loads.take(path); ok {
			if errors.Is(l.err, fs.ErrNotExist) {
				again = s.vanished(path) || again
			} else {
				s.adopt(path, f, l)
			}
		}
		if ctx.Err() != nil {
			return false, nil
		}
		if f.err == nil && p.wants(f) {
			s.adopt(path, f, load(path, 0))
		}
		p.file(path, f)
	}
	if again {
		// An object missing from one file may be in the one that is being written.
		return true, nil
	}
	p.finish()
	// What an unreadable directory hides can come back without any file having changed.
	s.settled = dirProblems == 0
	return false, nil
}

// vanished is told of a file that is not there. A file that was there before gets a second chance, since some editors move
// a file away before they write the new one; then it reports true.
func (s *Source) vanished(path string) (again bool) {
	f := s.files[path]
	if f.missing || len(f.entries) == 0 {
		delete(s.files, path)
		return false
	}
	f.missing = true
	return true
}

// state says whether a file has to be read.
func (f *file) state(info fs.FileInfo, first bool) fileState {
	now := stampOf(info)
	if f.err == nil && f.stamp == now && !f.young {
		return unchanged
	}
	const most = int(patience / settle)
	if age := time.Since(info.ModTime()); f.stamp != now && !first && age >= 0 && age < settle && f.deferred < most {
		f.deferred++
		return unfinished
	}
	f.deferred = 0
	return changed
}

type fileState int

const (
	unchanged fileState = iota
	changed
	// unfinished files were written to a moment ago and are left for another scan.
	unfinished
)

// adopt replaces what is known of a file.
func (s *Source) adopt(path string, f *file, l loaded) {
	if l.err != nil {
		f.err = l.err
		return
	}
	if l.same {
		l.content = f.content
	}
	before := f.content
	f.loaded = l
	for _, what := range l.skipped {
		if !slices.Contains(before.skipped, what) {
			s.log.WithFields(logrus.Fields{"file": path, "object": what}).Info("object of another kind skipped")
		}
	}
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
		old, inForce := p.s.applied[e.key]
		return e.problem == "" && e.object == nil && !taken && old.hash != e.hash && (e.flaw == "" || !inForce)
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
		case e.flaw != "" && inForce && old.hash != e.hash && !old.flawed:
			p.claimed[e.key] = place{path, e.document}
			p.s.applied[e.key] = origin{path, old.hash, false}
			problem.Message, problem.Retained = e.flaw, true
		default:
			p.claimed[e.key] = place{path, e.document}
			switch {
			case inForce && old.hash == e.hash:
				p.s.applied[e.key] = origin{path, e.hash, e.flaw != ""}
			case e.object != nil:
				set(p.s.tracker, e.object)
				p.s.applied[e.key] = origin{path, e.hash, e.flaw != ""}
			}
			if e.flaw == "" {
				e.object = nil
				continue
			}
			problem.Message = e.flaw
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
			p.s.applied[k] = origin{p.problems[i].File, o.hash, o.flawed}
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
