package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

// process is a program that runs on a host and writes its output to a file.
type process struct {
	name   string
	log    string // path of its output
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended, after err was set
	err    error
}

// startProcess starts a program with its output appended to a file of its name in dir.
func startProcess(host *lab.Host, dir, name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer out.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := host.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s on %s: %w", name, host.Name, err)
	}
	go p.wait()
	return p, nil
}

// wait ends with the process.
func (p *process) wait() {
	p.err = p.cmd.Wait()
	close(p.exited)
}

// ended says whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// stop asks the process to end and kills it after the patience. It returns when the process has ended.
func (p *process) stop(patience time.Duration) {
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.kill()
	}
}

// kill ends the process without giving it a chance to notice.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// tail returns the last lines of the process's output.
func (p *process) tail(lines int) string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := bytes.SplitAfter(content, []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-1-lines):], nil))
}

// await calls check until it returns nil, for as long as the process lives and no longer than the patience.
func (p *process) await(patience time.Duration, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s has ended: %v\n%s", p.name, p.err, p.tail(30))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %s: %w\n%s", p.name, patience, err, p.tail(30))
		}
	}
}
