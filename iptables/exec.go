package iptables

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// runner runs one program to its end. The error of a program that failed has a method ExitCode() int.
type runner interface {
	run(ctx context.Context, stdin, name string, args ...string) (stdout []byte, stderr string, err error)
}

// hooker is what unhooking needs of a go-iptables client.
type hooker interface {
	Delete(table, chain string, rulespec ...string) error
}

// programs runs programs of the host.
type programs struct{}

func (programs) run(ctx context.Context, stdin, name string, args ...string) ([]byte, string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // messages are classified by their text
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return stdout.Bytes(), stderr.String(), err
}
