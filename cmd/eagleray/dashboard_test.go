package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/group/executor"
)

// sizes are the sizes of a page at which nothing may be wider than it.
var sizes = []struct {
	name          string
	width, height int
}{{"narrow", 360, 820}, {"wide", 1600, 1000}}

// fits fails if the page can be scrolled sideways.
func (b *browser) fits(name string) {
	b.t.Helper()
	const root = "document.documentElement"
	if got := b.eval(root + ".scrollWidth - " + root + ".clientWidth"); got != "0" {
		b.t.Errorf("%s: the page is %s pixels wider than the window", name, got)
	}
}

// looks shows the page at all sizes, light and dark.
func (b *browser) looks(page string) {
	b.t.Helper()
	for _, size := range sizes {
		for _, scheme := range []string{"light", "dark"} {
			b.resize(size.width, size.height, scheme)
			// Two frames: sizes are observed in the first, what follows is drawn in the second.
			b.eval("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
			name := page + "-" + size.name + "-" + scheme
			b.fits(name)
			b.screenshot(name)
		}
	}
}

// browse opens the page of a server with those flags in a real browser.
func browse(t *testing.T, flags ...string) (b *browser, base string) {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is used in make test-full only")
	}
	b = startBrowser(t)
	_, base = startServer(t, flags...)
	b.resize(1600, 1000, "light")
	b.open(base + "/")
	return b, base
}

// TestDashboard uses the page in a real browser: it chats, stops, looks at the engine and at
// results.
func TestDashboard(t *testing.T) {
	b, base := browse(t, "-tp", "2")
	b.until("document.getElementById('about').textContent.includes('go-std-tiny')")
	b.looks("welcome")

	// A chat by keyboard alone: the text has the focus.
	b.until("document.activeElement.id === 'chat-text'")
	b.eval("document.getElementById('chat-colours').checked = true")
	b.eval("document.getElementById('chat-temperature').value = '0'")
	b.write("What does strings.Index do?")
	b.press("Enter", "\r", 13)
	b.until("document.querySelector('.answer .tools:not([hidden])')")
	answer := b.eval("[...document.querySelectorAll('.token:not(.beyond)')]" +
		".map((t) => t.textContent).join('')")
	if answer != `"Index returns the index of the first instance of substr in s, `+
		`or -1 if substr is not present in s."` {
		t.Errorf("the answer is %s", answer)
	}
	cost := b.eval("document.querySelector('.answer .cost').textContent")
	for _, want := range []string{"tokens/s", "TTFT", "stop"} {
		if !strings.Contains(cost, want) {
			t.Errorf("the answer's cost %s lacks %s", cost, want)
		}
	}
	b.eval("document.querySelector('.answer .tokens').focus()")
	b.press("ArrowRight", "", 39)
	b.press("ArrowRight", "", 39)
	b.until("document.querySelectorAll('.alternatives .other').length === 5")

	// Regenerate gives one answer again.
	b.eval("document.querySelector('.answer .again').click()")
	b.until("document.querySelectorAll('.answer').length === 1 && " +
		"document.querySelector('.answer .tools:not([hidden])')")

	// An answer that the model is not sure of has colours.
	b.eval("document.getElementById('chat-text').focus()")
	b.write("How do I read a file?")
	b.press("Enter", "\r", 13)
	b.until("document.querySelectorAll('.answer .tools:not([hidden])').length === 2")
	const doubts = "[...document.querySelectorAll('.answer:last-of-type .token')]" +
		".filter((t) => Number(t.style.getPropertyValue('--doubt')) > 0.2)"
	b.until(doubts + ".length > 0")
	b.eval(doubts + "[0].click()")
	b.until("document.querySelectorAll('.alternatives .other').length === 5")
	b.looks("chat")

	// Esc stops.
	b.eval("document.getElementById('chat-text').focus()")
	b.eval("document.getElementById('chat-max_tokens').value = '1900'")
	b.eval("document.getElementById('chat-temperature').value = '1'")
	b.eval("document.getElementById('chat-presence_penalty').value = '2'")
	b.write("What does os.Open do?")
	b.press("Enter", "\r", 13)
	b.press("Escape", "", 27)
	b.until("document.querySelectorAll('.answer .tools:not([hidden])').length === 3")

	// The engine, while it works.
	b.eval("location.hash = '#live'")
	b.until("document.querySelectorAll('.rank').length === 2")
	b.until("document.querySelector('.state').textContent === 'ready, nothing to do'")
	b.until("document.querySelectorAll('.timeline time').length > 0")
	load := make(chan int)
	go func() {
		code, _, _ := execute(t, "", "bench", "serve", "--base-url", base, "--num-prompts", "200",
			"--random-input-len", "64", "--random-output-len", "96", "--max-concurrency", "16")
		load <- code
	}()
	b.until("document.querySelector('.state').textContent === 'serving'")
	b.until("document.querySelectorAll('.plot canvas').length === 6")
	// The latencies are known after their second second.
	b.until("[...document.querySelectorAll('.plot .u-value')]" +
		".filter((v) => v.textContent.endsWith(' ms')).length >= 9")
	b.looks("live")
	if code := <-load; code != 0 {
		t.Fatalf("bench serve: exit code %d", code)
	}

	b.eval("location.hash = '#bench'")
	b.until("document.getElementById('bench-files')")
	b.clean(base)
	b.looks("bench-empty")
	// The page measures as bench serve does, and can be stopped.
	b.eval("document.getElementById('measure-num_prompts').value = '20'")
	b.eval("document.querySelector('.measure button.primary').click()")
	b.until("document.querySelectorAll('.files li').length === 1")
	b.until("document.querySelectorAll('.compare .plot canvas').length === 4")
	b.eval("document.getElementById('measure-num_prompts').value = '10000'")
	b.eval("document.querySelector('.measure button.primary').click()")
	const said = "document.querySelector('.measure [role=status]').textContent"
	b.until(said + ".includes('of 10000 requests')")
	b.looks("bench-measuring")
	b.eval("[...document.querySelectorAll('.measure button')].find((e) => " +
		"e.textContent === 'Stop').click()")
	b.until(said + " === 'stopped'")
	b.eval("document.querySelector('.files button').click()")
	b.until("document.querySelectorAll('.files li').length === 0")
	files := b.chooses(t, base)
	b.looks("bench")
	b.clean(base)

	// The report is the same, from a file.
	report := t.TempDir() + "/report.html"
	code, _, stderr := execute(t, "", append([]string{"bench", "report", "-o", report},
		files...)...)
	if code != 0 {
		t.Fatalf("bench report: exit code %d: %s", code, stderr)
	}
	table := b.table()
	b.open("file://" + report)
	b.until("document.querySelectorAll('.compare .plot canvas').length === 4")
	if got := b.table(); !reflect.DeepEqual(got, table) {
		t.Errorf("the report has %q, the page %q", got, table)
	}
	b.looks("report")
	b.clean(base)
}

// TestDashboardWhileItAnswers does to a conversation what can be done while an answer of it comes.
func TestDashboardWhileItAnswers(t *testing.T) {
	b, base := browse(t)
	b.until("document.querySelector('#chat-model option')")
	const kept = "Object.keys(localStorage).filter((k) => k.startsWith('eagleray-chat-'))" +
		".map((k) => JSON.parse(localStorage[k]))"
	ask := func() {
		b.eval("document.getElementById('chat-text').focus()")
		b.write("What does os.Open do?")
		b.press("Enter", "\r", 13)
	}
	click := func(within, label string) {
		b.eval("[...document.querySelectorAll('" + within + " button')].find((e) => " +
			"e.textContent === '" + label + "').click()")
	}

	// What a reload breaks off says nothing of the server.
	b.eval("document.getElementById('chat-text').focus()")
	b.write("What does os.Open do?")
	b.eval("document.querySelector('.composer').requestSubmit(); location.reload()")
	b.until("document.querySelector('.chats .open')")
	b.eval("document.querySelector('.chats .open').click()")
	b.until("document.querySelector('.answer .tools:not([hidden])')")
	if got := b.eval("document.querySelector('.answer .wrong').textContent"); got != `""` {
		t.Errorf("an answer broken off by a reload says %s", got)
	}
	b.eval("localStorage.clear()")
	b.eval("location.reload()")
	b.until("document.querySelector('#chat-model option') && !document.querySelector('.answer')")

	// From here on answers begin, and go on until they are stopped.
	b.eval(`{
		const real = fetch;
		window.fetch = (path, init) => path !== "v1/chat/completions" ? real(path, init) :
			Promise.resolve(new Response(new ReadableStream({ start(c) {
				const chunk = { choices: [{ delta: { content: "It " } }] };
				c.enqueue(new TextEncoder().encode("data: " + JSON.stringify(chunk) + "\n\n"));
				init.signal.addEventListener("abort", () => c.error(init.signal.reason));
			} })));
	}`)
	ask()
	b.until("document.querySelector('.answer > .text').innerText === 'It'")
	b.eval("document.querySelector('.chats .open').click()") // the one that is shown
	b.until("document.querySelector('.answer > .text').innerText === 'It'")
	click(".chats", "Rename")
	b.write("Open")
	click(".composer", "Stop")
	b.until("document.querySelector('.answer .tools:not([hidden])')")
	b.write("ing")
	b.press("Enter", "\r", 13)
	b.until("document.querySelector('.chats .open').textContent === 'Opening'")
	if got := b.eval(kept + ".map((c) => c.title + ': ' + c.nodes[c.head].content)"); got !=
		`["Opening: It "]` {
		t.Errorf("kept are %s", got)
	}
	python := b.eval(`new Promise((copied) => {
		const clipboard = { writeText: async (text) => copied(text) };
		Object.defineProperty(navigator, "clipboard", { value: clipboard });
		[...document.querySelectorAll(".answer button")].find((e) =>
			e.textContent === "Copy as Python").click();
	})`)
	if !strings.Contains(python, `extra_body={\"return_metrics\": True}`) {
		t.Errorf("the program has a field that OpenAI's client has no parameter for: %s", python)
	}

	click(".answer", "Regenerate")
	b.until("!document.querySelector('.composer button:not(.primary)[hidden]')")
	b.eval("window.confirm = () => true")
	click(".chats", "Delete")
	b.until("document.querySelector('.welcome') && document.querySelector('button.primary')" +
		".hidden === false")
	b.eval("new Promise((r) => setTimeout(r, 50))")
	if got := b.eval(kept + ".length"); got != "0" {
		t.Errorf("a conversation is kept that was deleted while an answer came: %s", got)
	}
	b.clean(base)
}

// TestDashboardRightToLeft: a text has the direction of its first letter, and code its own.
func TestDashboardRightToLeft(t *testing.T) {
	b, base := browse(t)
	b.eval(`{
		const nodes = [{ role: "user", content: "שלום, Paris." }, { role: "assistant",
			finish: "stop", content: "שלום, Paris.\n\n- א\n\n> א\n\nParis, שלום.\n\n    # א" }];
		nodes.forEach((n, i) => Object.assign(n, { id: String(i), parent: i ? "0" : null }));
		localStorage.setItem("eagleray-chat-1", JSON.stringify({ id: "1", title: "שלום, Paris.",
			changed: 1, head: "1", nodes: { ...nodes } }));
	}`)
	b.eval("location.reload()")
	b.until("document.querySelector('.chats .open')")
	b.eval("document.querySelector('.chats .open').click()")
	b.eval("document.getElementById('chat-text').value = 'שלום, Paris.'")
	if got := b.eval("[...document.querySelectorAll('.user .text, .answer > .text > *, " +
		"#chat-text')].map((e) => getComputedStyle(e).direction)"); got !=
		`["rtl","rtl","rtl","rtl","ltr","ltr","rtl"]` {
		t.Errorf("directions %s", got)
	}
	b.looks("right-to-left")
	b.clean(base)
}

// TestDashboardOfSeveralEngines shows ranks by engine, and which engine has failed.
func TestDashboardOfSeveralEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is used in make test-full only")
	}
	b := startBrowser(t)
	_, base := startServer(t, "-dp", "2", "-tp", "2", "--on-failure", "exit")
	b.resize(1600, 1000, "light")
	b.open(base + "/#live")
	b.until("document.querySelectorAll('.rank').length === 4")
	const headings = "[...document.querySelectorAll('.node h3')].map((e) => " +
		"e.textContent).join(' | ')"
	b.until(headings + " === 'engine 0, localhost | engine 1, localhost'")
	var ranks struct{ Ranks []executor.RankStatus }
	answer, err := http.Get(base + "/debug/ranks")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&ranks); err != nil || len(ranks.Ranks) != 4 {
		t.Fatalf("%v, ranks %+v", err, ranks.Ranks)
	}
	if err := syscall.Kill(ranks.Ranks[2].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.until("document.querySelectorAll('.node h3.failed').length === 1 && " + headings +
		".includes('engine 1, localhost: engine failed: rank 0 on localhost')")
	b.until("document.querySelector('.state').textContent === 'ready, nothing to do'")
	b.looks("engines")
}

// TestDashboardOfExperts shows a strip for each layer once experts have tokens, those of all
// engines together.
func TestDashboardOfExperts(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is used in make test-full only")
	}
	b := startBrowser(t)
	_, base := startServer(t, "../../testdata/models/qwen3moe-tiny", "--skip-tokenizer-init",
		"-dp", "2", "--max-model-len", "64")
	b.resize(1600, 1000, "light")
	b.open(base + "/#live")
	b.until("document.querySelectorAll('.rank').length === 2")
	b.until("document.querySelector('[aria-label=Experts]').hidden")
	sendTokens(t, base, 2)
	b.until("document.querySelectorAll('.experts canvas').length === 4")
	const first = "document.querySelector('.experts canvas')"
	b.until(first + ".getAttribute('aria-label')" +
		".startsWith('Load of 8 experts: balancedness 0.')")
	b.until("[..." + first + ".getContext('2d').getImageData(0, 0, 8, 1).data]" +
		".filter((v, i) => i % 4 === 3 && v === 255).length >= 1")
	b.looks("experts")
	b.clean(base)
}

// TestDebugExperts asks a server with two engines, each of two ranks in two processes, for the load
// of their experts.
func TestDebugExperts(t *testing.T) {
	_, base := startServer(t, "../../testdata/models/qwen3moe-tiny", "--skip-tokenizer-init",
		"-dp", "2", "-tp", "2", "--max-model-len", "64")
	sendTokens(t, base, 2)
	answer, err := http.Get(base + "/debug/experts")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var load struct {
		Engines []struct {
			Engine int
			Layers []struct {
				Layer  int
				Tokens []int64
			}
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&load); err != nil || len(load.Engines) != 2 {
		t.Fatalf("%+v, %v", load, err)
	}
	for i, e := range load.Engines {
		if e.Engine != i || len(e.Layers) != 4 {
			t.Fatalf("engine %d: %+v", i, e)
		}
		for n, l := range e.Layers {
			sum := int64(0)
			for _, tokens := range l.Tokens {
				sum += tokens
			}
			// One request each: five tokens of a prompt, and four that were computed after it.
			if l.Layer != n || len(l.Tokens) != 8 || sum != 2*(5+4) {
				t.Errorf("engine %d, layer %d: %+v", i, n, l)
			}
		}
	}
}

// sendTokens sends n different prompts of five tokens, each for five more, at the same time.
func sendTokens(t *testing.T, base string, n int) {
	t.Helper()
	var sending sync.WaitGroup
	for i := range n {
		sending.Go(func() {
			answer, err := http.Post(base+"/v1/completions", "application/json", strings.NewReader(
				fmt.Sprintf(`{"prompt":[%d,2,3,4,5],"max_tokens":5,"min_tokens":5,`+
					`"ignore_eos":true,"return_token_ids":true}`, 10+i)))
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 {
				t.Errorf("%d: %s", answer.StatusCode, body)
			}
		})
	}
	sending.Wait()
}

// TestDashboardAsksForTheKey: the page loads without the key, asks for it, and shows the engine
// once it has it.
func TestDashboardAsksForTheKey(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is used in make test-full only")
	}
	b := startBrowser(t)
	_, base := startServer(t, "--api-key", "sesame")
	b.open(base + "/#live")
	b.until("document.getElementById('ask').open && document.activeElement.id === 'ask-key'")
	b.screenshot("key")
	b.write("wrong")
	b.press("Enter", "\r", 13)
	b.until("document.getElementById('ask').open && !document.getElementById('ask-wrong').hidden")
	b.write("sesame")
	b.press("Enter", "\r", 13)
	b.until("document.querySelectorAll('.rank').length === 1")
	b.until("document.getElementById('about').textContent.includes('go-std-tiny')")
	if got := b.eval("document.cookie + localStorage.length"); got != `"0"` {
		t.Errorf("the page keeps %s beyond its tab", got)
	}
	if strings.Contains(b.eval("location.href"), "sesame") {
		t.Error("the key is in the address")
	}
}

// TestDashboardAsksAgain: a key that is given after the question was dismissed, in a browser that
// refuses storage and whose language has no formats, brings what had waited for it: the page is not
// loaded again.
func TestDashboardAsksAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is used in make test-full only")
	}
	b := startBrowser(t)
	_, base := startServer(t, "--api-key", "sesame")
	b.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `
		Object.defineProperty(Navigator.prototype, "language", { get: () => "en-US@posix" });
		for (const name of ["sessionStorage", "localStorage"])
			Object.defineProperty(window, name, { get() { throw new DOMException("refused"); } });
	`}, nil)
	b.open(base + "/#live")
	b.until("document.getElementById('ask').open")
	b.press("Escape", "", 27)
	b.until("document.getElementById('about').textContent.includes('asks for an API key')")
	b.until("document.querySelector('.state.lost')")
	b.eval("document.getElementById('key').click()")
	b.until("document.activeElement.id === 'ask-key'")
	b.write("sesame")
	b.press("Enter", "\r", 13)
	b.until("document.querySelectorAll('.rank').length === 1")
	b.until("document.getElementById('about').textContent.includes('go-std-tiny')")
	b.until("document.querySelector('.plot canvas')")
	if got := b.eval("performance.getEntriesByType('navigation')[0].type"); got != `"navigate"` {
		t.Errorf("the page was loaded by %s", got)
	}
}

// chooses gives two result files to the page, as a user who picks them.
func (b *browser) chooses(t *testing.T, base string) (files []string) {
	t.Helper()
	dir := t.TempDir()
	files = []string{dir + "/one-at-a-time.json", dir + "/sixteen.json"}
	for i, n := range []string{"1", "16"} {
		code, _, stderr := execute(t, "", "bench", "serve", "--base-url", base,
			"--num-prompts", "48", "--random-input-len", "32", "--random-output-len", "16",
			"--max-concurrency", n,
			"--metric-percentiles", "90,99", "--output-json", files[i], "--save-detailed")
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	var doc struct{ Root struct{ NodeID int } }
	b.call("DOM.getDocument", nil, &doc)
	var node struct{ NodeID int }
	b.call("DOM.querySelector", map[string]any{"nodeId": doc.Root.NodeID,
		"selector": "#bench-files"}, &node)
	b.call("DOM.setFileInputFiles", map[string]any{"nodeId": node.NodeID, "files": files}, nil)
	b.until("document.querySelectorAll('.files li').length === 2")
	rows := b.table()
	if len(rows) < 20 || len(rows[0]) != 3 || rows[0][1] != "one-at-a-time.json" {
		t.Errorf("the table is %q", rows)
	}
	b.until("document.querySelectorAll('.compare .plot canvas').length === 4")
	return files
}

// table is the text of the table of figures.
func (b *browser) table() (rows [][]string) {
	b.t.Helper()
	raw := b.eval("[...document.querySelectorAll('.wide-table tr')]" +
		".map((r) => [...r.cells].map((c) => c.innerText))")
	if err := json.Unmarshal([]byte(raw), &rows); err != nil {
		b.t.Fatal(err)
	}
	return rows
}

// TestDashboardShowsAStall: a stopped rank is seen where it is, and as an event.
func TestDashboardShowsAStall(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is used in make test-full only")
	}
	b := startBrowser(t)
	p, base := startServer(t, "-tp", "2", "--stall-warning", "1s")
	pid := twoWorkers(t, p)[1]
	b.open(base + "/#live")
	b.until("document.querySelectorAll('.rank').length === 2")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	b.eval(`void fetch("v1/completions", {method: "POST",
		headers: {"Content-Type": "application/json"},
		body: JSON.stringify({prompt: "Package", max_tokens: 4})})`)
	b.until("document.querySelector('.state.stalled')?.textContent === '1 rank stalled: 1'")
	b.until("document.querySelector('.rank[data-phase=stalled] h4')?.textContent === 'rank 1'")
	b.until("document.querySelector('.timeline .warn')?.textContent.includes('rank is stalled')")
	if got := b.eval("document.querySelectorAll('.rank[data-phase=stalled]').length"); got != "1" {
		t.Errorf("%s ranks are shown as stalled", got)
	}
	b.looks("stall")
	// The way by keyboard begins with the link that skips the navigation.
	b.press("Tab", "", 9)
	b.until("document.activeElement.matches('.skip')")
	b.press("Tab", "", 9)
	b.press("Tab", "", 9)
	b.until("document.activeElement.hash === '#chat' && document.activeElement.matches('nav a')")
	b.press("Enter", "\r", 13)
	// Esc ends an answer that does not come.
	b.until("document.activeElement.id === 'chat-text'")
	b.write("Hello")
	b.press("Enter", "\r", 13)
	b.until("document.querySelector('.answer')")
	b.press("Escape", "", 27)
	b.until("document.querySelector('.answer .cost').textContent === 'no token · stopped'")
	b.eval("location.hash = '#live'")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.until("document.querySelector('.state').textContent === 'ready, nothing to do'")
	b.clean(base)
}
