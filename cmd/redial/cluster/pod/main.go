// Command pod is what runs in a pod of the test cluster: it tells who it is, over TCP and UDP.
//
//	pod NAME ENDING PROTOCOL:PORT...
//
// A TCP client is greeted with the pod's name and then has each line answered; a datagram is answered by one. The
// requests are "hostname", "clientip" and "echo TEXT". On SIGTERM it exits at once, as a program does that knows nothing
// of signals, or with the ending "linger" goes on until it is killed. It prints "ready" once all its ports listen.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: pod NAME ENDING PROTOCOL:PORT...")
		os.Exit(2)
	}
	name := os.Args[1]
	if os.Args[2] == "linger" {
		signal.Ignore(syscall.SIGTERM)
	}
	for _, arg := range os.Args[3:] {
		protocol, port, _ := strings.Cut(arg, ":")
		if err := serve(name, protocol, ":"+port); err != nil {
			fmt.Fprintln(os.Stderr, "pod:", err)
			os.Exit(1)
		}
	}
	fmt.Println("ready")
	select {}
}

// serve listens and answers in the background.
func serve(name, protocol, address string) error {
	if protocol == "udp" {
		conn, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		go serveDatagrams(name, conn)
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveConn(name, conn)
		}
	}()
	return nil
}

// serveConn speaks first, so that a client whose connection is cut before the greeting knows that nothing was begun.
func serveConn(name string, conn net.Conn) {
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, name); err != nil {
		return
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if _, err := fmt.Fprintln(conn, answer(name, lines.Text(), conn.RemoteAddr())); err != nil {
			return
		}
	}
}

// serveDatagrams answers from the address that was asked only where the pod has one address a family, as pods do.
func serveDatagrams(name string, conn net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			continue // an ICMP error of an earlier answer
		}
		_, _ = conn.WriteTo([]byte(answer(name, string(buf[:n]), from)), from)
	}
}

func answer(name, request string, from net.Addr) string {
	if text, ok := strings.CutPrefix(request, "echo "); ok {
		return text
	}
	switch request {
	case "hostname":
		return name
	case "clientip":
		host, _, _ := net.SplitHostPort(from.String())
		return host
	}
	return "unknown request"
}
