package parent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// role makes the test binary a parent with a child, or the child.
const role = "EAGLERAY_PARENT_TEST"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "parent":
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), role+"=child", Variable+"="+strconv.Itoa(os.Getpid()))
		cmd.Stdout = os.Stdout
		_ = cmd.Run()
		os.Exit(0)
	case "child":
		asked, err := Watch()
		fmt.Println(os.Getpid(), asked, err)
		select {}
	}
	os.Exit(m.Run())
}

// TestWatch kills a parent: the end of its child closes the pipe that both had.
func TestWatch(t *testing.T) {
	if asked, err := Watch(); asked || err != nil {
		t.Fatalf("not asked for: %v, %v", asked, err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=parent")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var pid int
	var asked bool
	var failed string
	if _, err := fmt.Fscanln(lines, &pid, &asked, &failed); err != nil || !asked ||
		failed != "<nil>" {
		t.Fatalf("pid %d, asked %v, %s, %v", pid, asked, failed, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Errorf("process %d outlives its parent", pid)
	}
	_ = cmd.Wait()
}

func TestWatchKnowsOrphans(t *testing.T) {
	t.Setenv(Variable, "1")
	if os.Getppid() == 1 {
		t.Skip("the test's parent has the pid 1")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=child")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	want := fmt.Sprintf("%d true parent (pid 1) is gone\n", cmd.Process.Pid)
	if err != nil || line != want {
		t.Errorf("%q, %v, want %q", line, err, want)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func TestEnded(t *testing.T) {
	r, w := io.Pipe()
	ended := Ended(r)
	if _, err := w.Write([]byte("ignored")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		t.Fatal("ended while the parent holds it open")
	default:
	}
	w.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the end is not told")
	}
}
