package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

const mainEnv = "REDIAL_LAB_MAIN"

// Main runs a package's tests on a loopback network of their own, where nobody else on the machine takes a port that they
// have just closed. Where namespaces cannot be made, it runs them on the machine's.
//
//	func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
func Main(m interface{ Run() int }) int {
	if os.Getenv(mainEnv) != "" {
		if err := linkUp("lo"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	self, err := os.Executable()
	if err != nil {
		return m.Run()
	}
	runtime.LockOSThread() // with which the child would die
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	Isolate(cmd)
	cmd.SysProcAttr.Cloneflags &^= syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.Start() != nil {
		runtime.UnlockOSThread()
		return m.Run()
	}
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
