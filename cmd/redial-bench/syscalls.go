package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// syscallsSeries is what a system has asked of the kernel.
type syscallsSeries struct {
	System      string         `json:"system"`
	Connections int            `json:"connections"`
	Calls       map[string]int `json:"calls"` // by name
}

// countSyscalls counts those of each proxy while it serves short connections.
func (r *dataReport) countSyscalls(ctx context.Context, out io.Writer, n *network, all []*system, o *dataOptions) error {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return errors.New("strace is not installed (Debian: strace)")
	}
	for _, s := range all {
		if s.command == nil {
			continue
		}
		progress("%s", s.name)
		series := &syscallsSeries{System: s.name}
		sample := &dataSample{}
		if series.Calls, err = s.traced(ctx, n, strace, func() error {
			return ask(ctx, n.client, sample, s.dataLoad(shortArgs, o, nil)...)
		}); err != nil {
			return s.explain(err)
		}
		series.Connections = sample.Begun
		r.Syscalls = append(r.Syscalls, series)
	}
	fmt.Fprintf(out, "\n**%s: system calls of each, counted by strace, which slows the systems down**\n\n%s", shortLoad, syscallsTable(r.Syscalls))
	return nil
}

// traced counts the system calls of a system's processes while f runs.
func (s *system) traced(ctx context.Context, n *network, strace string, f func() error) (map[string]int, error) {
	pids, err := s.pids()
	if err != nil {
		return nil, err
	}
	counts := filepath.Join(n.dir, "strace")
	cmd := exec.Command(strace, "-c", "-f", "-q", "-o", counts)
	for _, pid := range pids {
		cmd.Args = append(cmd.Args, "-p", fmt.Sprint(pid))
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // Ctrl-C is for the node only
	if err := n.node.Start(cmd); err != nil {
		return nil, err
	}
	err = poll(ctx, 10*time.Second, func() error { return areTraced(pids) })
	if err == nil {
		err = f()
	}
	cmd.Process.Signal(unix.SIGINT)
	cmd.Wait() // it ends as if by the signal
	b, unread := os.ReadFile(counts)
	if err = errors.Join(err, unread); err != nil {
		return nil, fmt.Errorf("%w: strace says: %s", err, &complaints)
	}
	return parseStrace(string(b))
}

// areTraced is an error as long as any thread is not.
func areTraced(pids []int) error {
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil {
			return err
		}
		for _, path := range threads {
			b, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // it has ended meanwhile
			}
			if err != nil {
				return err
			}
			if strings.Contains(string(b), "\nTracerPid:\t0\n") {
				return fmt.Errorf("%s: strace is not attached", path)
			}
		}
	}
	return nil
}

// parseStrace returns the calls that strace -c lists.
func parseStrace(text string) (map[string]int, error) {
	calls := map[string]int{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line) // % time, seconds, usecs/call, calls, errors if any, syscall
		if len(fields) < 5 || fields[0] == "%" || strings.HasPrefix(fields[0], "-") || fields[len(fields)-1] == "total" {
			continue
		}
		n, err := strconv.Atoi(fields[3])
		if err != nil {
			return nil, fmt.Errorf("strace: %q: %w", line, err)
		}
		calls[fields[len(fields)-1]] += n
	}
	if len(calls) == 0 {
		return nil, fmt.Errorf("strace counted nothing: %q", text)
	}
	return calls, nil
}

func (s *syscallsSeries) each(name string) float64 {
	return float64(s.Calls[name]) / float64(max(s.Connections, 1))
}

// syscallsTable leaves out what nobody does once in a hundred connections; the sums include it.
func syscallsTable(series []*syscallsSeries) *table {
	header, sums := []string{"system call"}, []string{"**all**"}
	most := map[string]float64{}
	for _, s := range series {
		header = append(header, s.System)
		sum := 0.0
		for name := range s.Calls {
			sum += s.each(name)
			most[name] = max(most[name], s.each(name))
		}
		sums = append(sums, fmt.Sprintf("**%.1f**", sum))
	}
	t := newTable(header...)
	for _, name := range slices.Sorted(maps.Keys(most)) {
		if most[name] < 0.01 {
			continue
		}
		row := []string{name}
		for _, s := range series {
			if s.Calls[name] == 0 {
				row = append(row, "")
			} else {
				row = append(row, ratio(s.each(name)))
			}
		}
		t.add(row...)
	}
	t.add(sums...)
	return t
}
