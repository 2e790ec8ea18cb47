package manifest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// inode identifies a file or directory whatever its name.
type inode struct{ dev, ino uint64 }

// stamp changes whenever a file's content may have.
type stamp struct {
	inode
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{inode{uint64(st.Dev), st.Ino}, st.Size, st.Mtim, st.Ctim}
}

// tree is what was found under the directory.
type tree struct {
	// files by path.
	files map[string]found
	// dirs are all directories that could be read.
	dirs map[string]inode
	// unreadable directories: nothing is known about what is in them.
	unreadable map[string]error
}

// found is a file with the name of a manifest; err says why it cannot be one or cannot be looked at.
type found struct {
	info fs.FileInfo
	err  error
}

// walk finds the manifests under root. visit is called for each directory before it is read, so that a watch set there
// misses nothing. The error is about root itself.
func walk(root string, visit func(dir string, id inode)) (*tree, error) {
	t := &tree{files: map[string]found{}, dirs: map[string]inode{}, unreadable: map[string]error{}}
	info, err := os.Stat(root)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: root, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, err
	}
	t.walk(root, info, map[inode]bool{}, visit)
	return t, t.unreadable[root]
}

// walk reads one directory. Each is entered once, under the first of its names: symlinks may form a cycle, and a second
// name would only define everything twice.
func (t *tree) walk(dir string, info fs.FileInfo, seen map[inode]bool, visit func(string, inode)) {
	id := stampOf(info).inode
	if seen[id] {
		return
	}
	seen[id] = true
	visit(dir, id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) && len(t.dirs) > 0 {
		return // gone since its parent was read
	}
	if err != nil {
		t.unreadable[dir] = err
		return
	}
	t.dirs[dir] = id
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if e.Type()&fs.ModeType == 0 && !isManifest(path) {
			continue
		}
		switch info, err := os.Stat(path); {
		case err != nil:
			if _, lerr := os.Lstat(path); errors.Is(lerr, fs.ErrNotExist) {
				continue // gone since the directory was read
			}
			if isManifest(path) {
				t.files[path] = found{err: err}
			} else {
				t.unreadable[path] = err
			}
		case info.IsDir():
			t.walk(path, info, seen, visit)
		case !isManifest(path):
		case !info.Mode().IsRegular():
			// Opening a named pipe would wait for its writer.
			t.files[path] = found{err: &fs.PathError{Op: "open", Path: path, Err: errNotRegular}}
		default:
			t.files[path] = found{info: info}
		}
	}
}

var errNotRegular = errors.New("not a regular file")

func isManifest(path string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(path)))
}
