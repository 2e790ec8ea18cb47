package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what processes have used so far, user and system, of all their threads, past ones too. It reads the
// processes' CPU clocks: /proc/PID/stat has the same sum, but in ticks of 10 ms, which is 1 % of a second's work.
func cpuTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		var t unix.Timespec
		// The id that clock_getcpuclockid(3) makes: the process's number inverted, and 2 for the scheduler's clock.
		if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
			return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}

// footprint is what processes hold.
type footprint struct {
	Resident int64 `json:"resident"` // bytes
	FDs      int   `json:"fds"`
}

func (f footprint) max(g footprint) footprint {
	return footprint{Resident: max(f.Resident, g.Resident), FDs: max(f.FDs, g.FDs)}
}

func footprintOf(pids []int) (footprint, error) {
	var sum footprint
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return sum, err
		}
		pages, err := parseStatm(string(b))
		if err != nil {
			return sum, err
		}
		fds, err := countFDs(pid)
		if err != nil {
			return sum, err
		}
		sum.Resident += pages * int64(os.Getpagesize())
		sum.FDs += fds
	}
	return sum, nil
}

// countFDs asks for the folder's size, which is the number of descriptors since Linux 6.2. To list them takes the
// process's lock for milliseconds when there are many.
func countFDs(pid int) (int, error) {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	info, err := os.Stat(folder)
	if err != nil {
		return 0, err
	}
	if info.Size() > 0 {
		return int(info.Size()), nil
	}
	entries, err := os.ReadDir(folder)
	return len(entries), err
}

// countSockets leaves out what else processes keep, such as pipes that they will need again.
func countSockets(pids []int) (int, error) {
	sum := 0
	for _, pid := range pids {
		folder := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(folder)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			// One that has been closed meanwhile is none.
			if what, err := os.Readlink(filepath.Join(folder, e.Name())); err == nil && strings.HasPrefix(what, "socket:") {
				sum++
			}
		}
	}
	return sum, nil
}

// parseStatm returns the resident pages of /proc/PID/statm.
func parseStatm(s string) (pages int64, err error) {
	fields := strings.Fields(s)
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm %q: too short", s)
	}
	return strconv.ParseInt(fields[1], 10, 64)
}

// parent returns the parent's number in /proc/PID/stat. The command's name, in parentheses, can itself hold both.
func parent(stat string) (int, error) {
	_, rest, ok := cutLast(stat, ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0, fmt.Errorf("stat %q: too short", stat)
	}
	return strconv.Atoi(fields[1])
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// family returns a process and its children.
func family(pid int) ([]int, error) {
	pids := []int{pid}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended meanwhile
		} else if err != nil {
			return nil, err
		}
		if of, err := parent(string(b)); err != nil {
			return nil, err
		} else if of == pid {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				return nil, err
			}
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// cpuWithChildren is cpuTime of one process, and of those that it has started and that have ended: of these in ticks of
// 10 ms, since they have no clock any more.
func cpuWithChildren(pid int) (time.Duration, error) {
	own, err := cpuTime([]int{pid})
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := cutLast(string(stat), ")")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, fmt.Errorf("stat %q: too short", stat)
	}
	for _, ticks := range fields[13:15] { // cutime and cstime
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return 0, err
		}
		own += time.Duration(n) * 10 * time.Millisecond
	}
	return own, nil
}

// peakOf is the most bytes that a process has had resident.
func peakOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d does not say its VmHWM", pid)
}
