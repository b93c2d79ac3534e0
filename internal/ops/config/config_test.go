package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// flags is the flag set of serve.
func flags() (*config.Config, *pflag.FlagSet) {
	c := config.Default()
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetNormalizeFunc(config.Normalize)
	c.EngineFlags(f)
	c.ServerFlags(f)
	return &c, f
}

// parse is what the program does with a command line.
func parse(args ...string) (*config.Config, error) {
	c, f := flags()
	if err := f.Parse(config.Expand(f, args)); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

func TestFlags(t *testing.T) {
	tests := []struct {
		args string
		got  func(c *config.Config) any
		want any
	}{
		{"-tp 2", func(c *config.Config) any { return c.Parallel.TensorParallelSize }, 2},
		{"--device cuda --ray-devices-per-worker 0.5",
			func(c *config.Config) any { return c.Parallel.Ray.DeviceKey }, "GPU"},
		{"-tp=4", func(c *config.Config) any { return c.Parallel.TensorParallelSize }, 4},
		{"--tensor_parallel_size 3",
			func(c *config.Config) any { return c.Parallel.TensorParallelSize }, 3},
		{"-pp 2 --pipeline-layer-split 3,1",
			func(c *config.Config) any { return c.Parallel.PipelineLayerSplit }, []int{3, 1}},
		{"-dp 2 --data-parallel-size-local 2",
			func(c *config.Config) any { return c.Parallel.DataParallelSize }, 2},
		{"-pp=3 -tp 2", func(c *config.Config) any { return c.Parallel.Layout() },
			layout.Layout{TP: 2, PP: 3, PCP: 1, DP: 1}},
		{"-tp 2 -dp 4", func(c *config.Config) any { return c.Parallel.Layout() },
			layout.Layout{TP: 2, PP: 1, PCP: 1, DP: 1}},
		{"-tp 2 -dp 4 -ep", func(c *config.Config) any { return c.Parallel.Layout() },
			layout.Layout{TP: 2, PP: 1, PCP: 1, DP: 4, EP: true}},
		{"-dp 4 -ep", func(c *config.Config) any { return c.Parallel.Engines() }, 1},
		{"-dp 4", func(c *config.Config) any { return c.Parallel.Balanced.Any() }, false},
		{"-dp 4 --data-parallel-rank 2", func(c *config.Config) any {
			return []int{c.Parallel.Engines(), c.Parallel.Balanced.First()}
		}, []int{1, 2}},
		{"-dp 4 --data-parallel-size-local 2 --data-parallel-start-rank 2",
			func(c *config.Config) any {
				return []int{c.Parallel.Engines(), c.Parallel.Balanced.First()}
			}, []int{2, 2}},
		{"--max-model-len 4k", func(c *config.Config) any { return c.Model.MaxModelLen }, 4000},
		{"--max_model_len=4K", func(c *config.Config) any { return c.Model.MaxModelLen }, 4096},
		{"--max-model-len auto", func(c *config.Config) any { return c.Model.MaxModelLen }, 0},
		{"--max-model-len -1", func(c *config.Config) any { return c.Model.MaxModelLen }, 0},
		{"--kv-cache-memory-bytes 2G", func(c *config.Config) any { return c.Cache.MemoryBytes },
			int64(2 << 30)},
		{"--no-enable-prefix-caching", func(c *config.Config) any { return c.Cache.PrefixCaching },
			false},
		{"--no-enable-prefix-caching=false",
			func(c *config.Config) any { return c.Cache.PrefixCaching }, true},
		// vLLM's switches have an opposite each, and those of enable-x and disable-x another one.
		{"--disable_prefix_caching", func(c *config.Config) any { return c.Cache.PrefixCaching },
			false},
		{"--enforce-eager --no-enforce-eager",
			func(c *config.Config) any { return c.Parallel.Eager }, false},
		{"--enable-fastapi-docs=false",
			func(c *config.Config) any { return c.Server.DisableDocs }, true},
		{"--enable-sliding-window", func(c *config.Config) any { return c.Warnings },
			[]string{"--disable-sliding-window has no effect: the model's windows are kept"}},
		{"--enable-prefix-caching=false",
			func(c *config.Config) any { return c.Cache.PrefixCaching }, false},
		{"-pp 2", func(c *config.Config) any { return c.MaxInFlight() }, 3},
		{"--no-async-scheduling -pp 2", func(c *config.Config) any { return c.MaxInFlight() }, 2},
		{"--async-scheduling", func(c *config.Config) any { return c.MaxInFlight() }, 2},
		{"--no-async-scheduling", func(c *config.Config) any { return c.MaxInFlight() }, 1},
		{"--no_enable_chunked_prefill",
			func(c *config.Config) any { return c.Schedule.ChunkedPrefill }, false},
		{"--served-model-name a b --port 1",
			func(c *config.Config) any { return c.Model.ServedNames }, []string{"a", "b"}},
		{"--served_model_name a b,c --api-key k,1 l",
			func(c *config.Config) any { return append(c.Model.ServedNames, c.Server.APIKeys...) },
			[]string{"a", "b", "c", "k,1", "l"}},
		{"--served-model-name a,b --served-model-name c",
			func(c *config.Config) any { return c.Model.ServedNames }, []string{"a", "b", "c"}},
		// A key with a comma is one key, not two shorter ones.
		{"--api-key a,b --api-key c", func(c *config.Config) any { return c.Server.APIKeys },
			[]string{"a,b", "c"}},
		{"--disable-custom-all-reduce --swap-space 4 -dcp 1",
			func(c *config.Config) any { return len(c.Warnings) }, 3},
		{"--no-enable-tower-connector-lora",
			func(c *config.Config) any { return len(c.Warnings) }, 1},
		{"--enable-lora --lora-modules a=b c=d/e,f --max-loras 2 --lora-modules {\"name\":\"g\"," +
			"\"path\":\"h=i\"}", func(c *config.Config) any {
			named, err := c.LoRA.Named()
			return fmt.Sprint(c.LoRA.Enable, c.LoRA.MaxLoras, c.LoRA.MaxRank, named, err)
		}, "true 2 16 [{a b } {c d/e,f } {g h=i }] <nil>"},
		{"--drain-timeout 7", func(c *config.Config) any { return c.Server.ShutdownTimeoutSeconds },
			7},
		{`--allowed-origins ["*"] --allowed-methods GET,PUT --allowed-methods POST`,
			func(c *config.Config) any {
				return append(c.Server.AllowedOrigins, c.Server.AllowedMethods...)
			}, []string{"*", "GET", "PUT", "POST"}},
		{`--structured-outputs-config {"backend":"xgrammar","disable_any_whitespace":true}`,
			func(c *config.Config) any { return c.Server.Answers.CompactJSON }, true},
		{"-sc.method ngram --speculative-config.num_speculative_tokens=3",
			func(c *config.Config) any {
				return fmt.Sprint(c.Speculative.Method, c.Speculative.Tokens)
			}, "ngram3"},
		{"--compilation-config.cudagraph_capture_sizes+ 1,2 --limit-mm-per-prompt.image 0",
			func(c *config.Config) any { return len(c.Warnings) }, 2},
		{`--default-chat-template-kwargs {"a":1}`,
			func(c *config.Config) any { return c.Server.Answers.ChatTemplateKwargs }, `{"a":1}`},
		{"-O3 -O 2 -O=0 -cc {} --worker-use-ray=false",
			func(c *config.Config) any { return len(c.Warnings) }, 3},
		{"--stream-interval 10",
			func(c *config.Config) any { return c.Server.Answers.StreamInterval }, 10},
		{"--api-server-count=4 --performance-mode interactivity " +
			"--cpu-offload-gb 0 --language-model-only --api-server-count=4",
			func(c *config.Config) any { return c.Warnings }, []string{
				"--api-server-count has no effect: HTTP is served by the driver process",
				"--performance-mode has no effect: steps are as large as requests make them",
				"--cpu-offload-gb has no effect: weights are in memory already",
				"--language-model-only has no effect: input is text"}},
		{"--kv-cache-dtype fp8", func(c *config.Config) any { return c.Cache.DType }, "fp8_e4m3"},
		{"--kv-cache-dtype int8_per_token_head",
			func(c *config.Config) any { return c.Cache.DType }, "int8"},
	}
	for _, tt := range tests {
		c, err := parse(strings.Fields(tt.args)...)
		if err != nil {
			t.Errorf("%s: %v", tt.args, err)
			continue
		}
		if got := tt.got(c); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.args, got, tt.want)
		}
	}
}

// Every mistake is refused with the name of the flag at fault.
func TestMistakes(t *testing.T) {
	tests := []struct{ args, want string }{
		{"--max-model-len 0", "--max-model-len"},
		{"--max-model-len -5", "--max-model-len"},
		{"--max-model-len 1.5K", "--max-model-len"},
		{"--max-model-len 9999999999", "--max-model-len"},
		{"--max-num-seqs auto", "--max-num-seqs"},
		{"--max-num-seqs 0", "--max-num-seqs"},
		{"--max-num-batched-tokens 10", "--max-num-batched-tokens 10 is less than --max-num-seqs"},
		{"--kv-cache-memory-bytes infk", "--kv-cache-memory-bytes"},
		{"--kv-cache-memory-bytes -1G", "--kv-cache-memory-bytes"},
		{"--on-failure shrink -tp 2",
			"--on-failure shrink without --distributed-executor-backend ray"},
		{"--on-failure shrink --distributed-executor-backend ray -dp 2",
			"--on-failure shrink with --tensor-parallel-size 1: no layout is smaller"},
		{"--on-failure shrink --distributed-executor-backend ray -tp 2 --ray-placement-group g",
			"--on-failure shrink with --ray-placement-group g"},
		{"--on-failure shrink --distributed-executor-backend ray -tp 2 --bundle-indices 0,1",
			"--on-failure shrink with --bundle-indices 0,1"},
		{"--on-failure exit --max-restarts 3", "--max-restarts 3 with --on-failure exit"},
		{"--on-failure exit --restart-window 60", "--restart-window 1m0s with --on-failure exit"},
		{"--block-size 8", "--block-size 8"},
		{"--block-size 24", "--block-size 24"},
		{"--block-size 0", "--block-size 0"},
		{"--log-format xml", `--log-format "xml" is not one of auto, text, logfmt, json`},
		{"--dtype int8", `--dtype "int8"`},
		{"--load-format pt", `--load-format "pt"`},
		{"--scheduling-policy lifo", `--scheduling-policy "lifo"`},
		{"--distributed-executor-backend external_launcher", "--distributed-executor-backend"},
		{"--ray-devices-per-worker 2 --ray-device-key GPU", "--ray-devices-per-worker 2"},
		{"--ray-devices-per-worker 0", "--ray-devices-per-worker 0"},
		{"--cuda-fast", "--cuda-fast without --device cuda"},
		{"--device cuda --distributed-executor-backend uni",
			"--distributed-executor-backend uni with --device cuda"},
		{"--device cuda --distributed-executor-backend ray --ray-device-key NPU",
			"--ray-device-key NPU with --device cuda"},
		{"-dp 0", "--data-parallel-size"},
		{"-dp 3 -ep --nnodes 2 --master-addr a --cluster-token-file t",
			"--nnodes 2 does not divide the 3 ranks (tensor × pipeline × prefill context × data " +
				"parallel size)"},
		{"-dp 4 --data-parallel-size-local 2", "--data-parallel-size-local"},
		{"-dp 4 --data-parallel-external-lb", "needs --data-parallel-rank"},
		{"-dp 4 --data-parallel-rank 4",
			"--data-parallel-rank 4: this server has engines 4 to 4, of --data-parallel-size 4"},
		{"-dp 4 --data-parallel-rank -2", "--data-parallel-rank -2"},
		{"-dp 4 --data-parallel-rank 1 --data-parallel-size-local 2",
			"--data-parallel-size-local 2 with --data-parallel-rank 1"},
		{"-dp 4 --data-parallel-rank 1 --data-parallel-hybrid-lb",
			"--data-parallel-rank with --data-parallel-hybrid-lb"},
		{"-dp 4 --data-parallel-hybrid-lb", "needs --data-parallel-size-local"},
		{"-dp 4 --data-parallel-start-rank 3 --data-parallel-size-local 2",
			"--data-parallel-start-rank 3: this server has engines 3 to 4"},
		{"-dp 2 -ep --data-parallel-rank 1", "--data-parallel-rank with " +
			"--enable-expert-parallel: one driver plans the steps of all --data-parallel-size 2"},
		{"-dp 2 --ray-placement-group g", "--bundle-indices"},
		{"-dp 2 --bundle-indices 0,1", "--ray-placement-group"},
		{"--ray-placement-timeout soon", "--ray-placement-timeout"},
		{"--queue-port-range 20000-10000", "--queue-port-range"},
		{"--queue-port-range 0-10", "--queue-port-range"},
		{"--queue-port-range 70000", "--queue-port-range"},
		{"--cpu-isa sse", `--cpu-isa "sse"`},
		{"--cpu-bind all", `--cpu-bind "all": "all" is no list of processors`},
		{"--cpu-bind 0|0 -tp 2", `--cpu-bind "0|0": processor 0 is in two sets`},
		{"--cpu-bind 0 -tp 2", `--cpu-bind "0": 1 sets for the 2 ranks of this machine`},
		{"--cpu-bind 1023", `--cpu-bind "1023": processor 1023 is not one that`},
		{"--cpu-bind 0 --distributed-executor-backend ray", `--cpu-bind "0" with`},
		{"--cpu-threads -1", "--cpu-threads -1"},
		{"-tp 0", "--tensor-parallel-size 0"},
		{"-pcp 0", "--prefill-context-parallel-size 0"},
		{"--nnodes 0", "--nnodes 0 is less than 1"},
		{"-tp 2 --nnodes 2", "--nnodes 2 needs --master-addr"},
		{"-tp 2 --nnodes 2 --master-addr a", "--nnodes 2 needs --cluster-token-file"},
		{"-tp 2 --nnodes 2 --node-rank 2 --master-addr a",
			"--node-rank 2 is outside of 0 to 1 (--nnodes 2)"},
		{"--node-rank 1", "--node-rank 1 is outside of 0 to 0 (--nnodes 1)"},
		{"--node-rank -1 --nnodes 2", "--node-rank -1"},
		{"--headless", "--headless on node 0"},
		{"-tp 2 --nnodes 2 --headless --master-addr a", "--headless on node 0"},
		{"-tp 2 --nnodes 2 --node-rank 1 --master-addr a --cluster-token-file t",
			"--node-rank 1 needs --headless"},
		{"-tp 2 --nnodes 2 --master-addr a --cluster-token-file t --distributed-executor-backend " +
			"ray", "--nnodes 2 with --distributed-executor-backend ray"},
		{"-tp 2 --nnodes 2 --master-addr a --cluster-token-file t --distributed-executor-backend " +
			"uni", "uni"},
		{"-tp 2 --nnodes 2 --master-addr a --master-port 0", "--master-port 0 is not a port"},
		{"-tp 4 --nnodes 3 --master-addr a --cluster-token-file t",
			"--nnodes 3 does not divide the 4 ranks (tensor × pipeline × prefill context " +
				"parallel size): --nnodes 2 or 4 would"},
		{"--nnodes 2 --master-addr a --cluster-token-file t",
			"--nnodes 2 does not divide the 1 ranks (tensor × pipeline × prefill context " +
				"parallel size): --nnodes 1 would"},
		{"-dp 3 -tp 2 --nnodes 2 --master-addr a --cluster-token-file t",
			"--nnodes 2 with --data-parallel-size 3: nodes have whole replicas of 2 ranks, or " +
				"equal parts of one: --nnodes 1 or 3 would do, or --data-parallel-size 2 or 4"},
		{"-dp 2 -tp 2 --nnodes 8 --master-addr a --cluster-token-file t",
			"--nnodes 4 would do, or --data-parallel-size 4"},
		{"-dp 4 -tp 2 --nnodes 2 --data-parallel-size-local 4 --master-addr a " +
			"--cluster-token-file t",
			"--data-parallel-size-local 4 is not 2: each of --nnodes 2 has an equal part of " +
				"--data-parallel-size 4"},
		{"--distributed-timeout-seconds never", "--distributed-timeout-seconds"},
		{"-pp 0", "--pipeline-parallel-size 0"},
		{"-pp 2 --pipeline-layer-split 4",
			"--pipeline-layer-split 4 has 1 stages, --pipeline-parallel-size is 2"},
		{"-pp 2 --pipeline-layer-split 4,0", "--pipeline-layer-split"},
		{"-pp 2 --pipeline-layer-split 4;1", "--pipeline-layer-split"},
		{"--max-logprobs -2", "--max-logprobs -2"},
		{"--port 65536", "--port 65536"},
		{"--port -1", "--port -1"},
		{"--api-key=", "--api-key is empty"},
		{"--enable-elastic-ep --host 0.0.0.0", "--enable-elastic-ep at --host"},
		{"--override-generation-config [1]", "--override-generation-config"},
		{"--no-enable-prefix-caching=maybe", `"maybe" for "--enable-prefix-caching"`},
		{"--disable-trust-remote-code", "unknown flag: --disable-trust-remote-code"},
		{"--task embed", "say --runner pooling"},
		{"--spec-method ngram", "say --speculative-config"},
		{"--shutdown-timeout -1", "--shutdown-timeout -1"},
		{"--drain-timeout -1", "--shutdown-timeout -1"},
		{"--allowed-origins [1]", "--allowed-origins"},
		{"--default-chat-template-kwargs [1]", "--default-chat-template-kwargs"},
		{"--default-chat-template-kwargs null", "--default-chat-template-kwargs"},
		{`--structured-outputs-config {"disable_additional_properties":true}`,
			"--structured-outputs-config"},
		{`--structured-outputs-config {"backends":"auto"}`, "--structured-outputs-config"},
		{"--api-key-file /no/such/file", "--api-key-file"},
		{"--num-scheduler-steps 8", "--num-scheduler-steps"},
		{"--frobnicate", "--frobnicate"},
		{"--lora-modules a=b c=d", "--lora-modules without --enable-lora"},
		{"--enable-lora --lora-modules a", "--lora-modules \"a\" is not name=path"},
		{"--enable-lora --lora-modules a=b a=c", "--lora-modules names a twice"},
		{`--enable-lora --lora-modules {"name":"a","file":"b"}`, "is not read"},
		{"--lora-resolver /tmp", "--lora-resolver /tmp without --enable-lora"},
		{"--enable-lora --lora-resolver /no/such/folder", "neither a folder, a bucket nor hub"},
		{"--enable-lora --lora-resolver hub:", "is not hub:ORGANISATION"},
		{"--max-lora-rank 0", "--max-lora-rank 0 is less than 1"},
		{"--max-loras -1", "--max-loras -1 is less than 0"},
		{"--enable-lora --max-loras 4 --max-cpu-loras 2", "--max-loras 4 is more than"},
		{"--enable-lora --max-cpu-loras 1 --lora-modules a=b c=d", "has 2 adapters"},
		{"--enable-lora --runner pooling", "--enable-lora with --runner pooling"},
		{"--enable-lora --on-model-change adopt", "--enable-lora with --on-model-change adopt"},
		{`--enable-lora --kv-transfer-config {"kv_connector":"EagleRayConnector",` +
			`"kv_role":"kv_both"}`, "--enable-lora with --kv-transfer-config"},
		{"--kv-offloading-size -1", "--kv-offloading-size -1"},
		{"--kv-offloading-size NaN", "--kv-offloading-size NaN"},
		{"--kv-offloading-size x", "--kv-offloading-size"},
		{"--kv-offloading-dir x", "--kv-offloading-dir x without --kv-offloading-size"},
		{"--kv-offloading-size 1 --kv-offloading-backend lmcache",
			"--kv-offloading-backend lmcache"},
		{"--kv-offloading-size 1 --kv-offloading-backend x", `--kv-offloading-backend "x"`},
		{"--kv-offloading-size 1 --no-enable-prefix-caching",
			"--kv-offloading-size with --no-enable-prefix-caching"},
		{`--kv-offloading-size 1 --kv-transfer-config {"kv_connector":"EagleRayConnector",` +
			`"kv_role":"kv_both"}`, "--kv-offloading-size with --kv-transfer-config"},
		{"--enable-moe-shared-loras", "known and not supported yet"},
		{"--middleware a b", "--middleware"},
		// Known to vLLM, and not here.
		{"-dcp 2", "--decode-context-parallel-size"},
		{"-q squeezellm", "--quantization"},
		{"--kv-cache-dtype fp8_e5m2", `--kv-cache-dtype "fp8_e5m2"`},
		{"--kv-cache-dtype nvfp4", "fp8_e4m3"},
		{"--kv-cache-dtype-skip-layers 0", "all layers have the type"},
		{"--cpu-offload-gb 4", "values but 0, 0.0 are not supported yet: weights are in memory"},
		{"--rope-theta 1e6", "--hf-overrides"},
		{"--grpc", "--grpc"},
		{"--speculative-config {}", `--speculative-config" flag: method "" is not ngram, suffix,`},
		{`--speculative-config {"method":"ngram"}`, "num_speculative_tokens is missing"},
		{`--speculative-config {"method":"ngram","num_speculative_tokens":33}`, "33 is not 1 to 32"},
		{`--speculative-config {"method":"ngram","num_speculative_tokens":0}`, "0 is not 1 to 32"},
		{`--speculative-config {"method":"ngram","num_speculative_tokens":1,"k":2}`, `field "k"`},
		{`--speculative-config {"method":"ngram","num_speculative_tokens":1,` +
			`"prompt_lookup_min":0}`, "prompt_lookup_min 0"},
		{`--speculative-config {"method":"ngram","num_speculative_tokens":1,` +
			`"prompt_lookup_min":4,"prompt_lookup_max":3}`, "prompt_lookup_max 3 is less"},
		{`-sc {"method":"eagle","num_speculative_tokens":1}`, `"eagle" is not available`},
		{`-sc {"method":"eagle3","num_speculative_tokens":1}`, "model is missing"},
		{`-sc {"model":"x"}`, "num_speculative_tokens is missing"},
		{`-sc {"method":"draft_model","num_speculative_tokens":1}`, "model is missing"},
		{`-sc {"method":"deepseek_mtp"}`, "num_speculative_tokens is missing"},
		{`-sc {"method":"mtp","model":"x","num_speculative_tokens":1}`, "for the methods draft_model and eagle3"},
		{`-sc {"model":"x","num_speculative_tokens":1,"draft_tensor_parallel_size":2}`,
			"draft_tensor_parallel_size 2 is not 1"},
		{`-sc {"model":"x","num_speculative_tokens":1,"prompt_lookup_min":2}`,
			"for the method ngram"},
		{`-sc {"model":"x","method":"suffix"}`, "for the methods draft_model and eagle3"},
		{`-sc {"method":"suffix","prompt_lookup_min":3}`, "prompt_lookup_min and"},
		{`-sc {"method":"suffix","suffix_decoding_max_tree_depth":0}`, "depth 0 is less"},
		{`-sc {"method":"suffix","num_speculative_tokens":99}`, "99 is not 1 to 32"},
		{`-sc {"method":"suffix","suffix_decoding_max_cached_requests":-1}`, "requests -1 is"},
		{`-sc {"method":"suffix","suffix_decoding_max_spec_factor":0}`, "factor 0 is"},
		{`-sc {"method":"suffix","suffix_decoding_min_token_prob":2}`, "prob 2 is"},
		{`-sc {"method":"ngram","num_speculative_tokens":1,` +
			`"suffix_decoding_max_tree_depth":4}`, "for the method suffix"},
		{`-sc {"method":"guess","num_speculative_tokens":1}`, `method "guess" is not ngram, suffix`},
		{`-sc {"model":"ngram","num_speculative_tokens":1} --runner pooling`,
			"--speculative-config with --runner pooling"},
		{"--tool-call-parser inkling", "--tool-call-parser"},
		{"--reasoning-parser nobody", "--reasoning-parser"},
		{"--ssl-keyfile key.pem", "--ssl-keyfile"},
		{"--ssl-certfile cert.pem", "--ssl-certfile"},
		{"--ssl-cert-reqs 3", "--ssl-cert-reqs 3"},
		{"--ssl-cert-reqs 2", "--ssl-cert-reqs 2 needs --ssl-ca-certs"},
		{"--ssl-ca-certs ca.pem", "--ssl-ca-certs needs"},
		{"--ssl-ciphers HIGH", "--ssl-ciphers"},
		{"--disable-custom-all-reduce=perhaps", "--disable-custom-all-reduce"},
	}
	for _, tt := range tests {
		_, err := parse(strings.Fields(tt.args)...)
		if err == nil {
			t.Errorf("%s was accepted", tt.args)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %q does not have %q", tt.args, err, tt.want)
		}
	}
}

func TestExpand(t *testing.T) {
	tests := []struct{ in, want string }{
		{"serve m -tp 2", "serve m --tensor-parallel-size 2"},
		{"serve -n 2 -r 1", "serve --nnodes 2 --node-rank 1"},
		{"serve -dp=1 -- -tp", "serve --data-parallel-size=1 -- -tp"},
		{"serve m --served-model-name a b --seed 1",
			"serve m --served-model-name=a --served-model-name=b --seed 1"},
		{"serve --lora_modules a=b c=d --served-model-name",
			"serve --lora_modules=a=b --lora_modules=c=d --served-model-name"},
		{"serve --served-model-name=a b", "serve --served-model-name=a b"},
		{"serve --revision a b", "serve --revision a b"},
		{"serve --hf_overrides.a.b 1e6 -tp 2 --hf-overrides.a.c x --hf-overrides.d true",
			`serve --tensor-parallel-size 2 --hf-overrides={"a":{"b":1e6,"c":"x"},"d":true}`},
		{"serve --hf-overrides.a+ 1,b --hf-overrides.a+=c --hf-overrides.k 4k -- --port.a 1",
			`serve --hf-overrides={"a":["1","b","c"],"k":4000} -- --port.a 1`},
		{"serve --hf-overrides.a", "serve --hf-overrides.a"},
		{"serve --unknown.a 1", "serve --unknown.a 1"},
		{"serve --no-enforce-eager m", "serve --enforce-eager=false m"},
		{"serve --no-port 1", "serve --no-port 1"},
		{"generate --served-model-name a - -tp 2",
			"generate --served-model-name=a --served-model-name=- --tensor-parallel-size 2"},
		{"", ""},
	}
	for _, tt := range tests {
		_, f := flags()
		if got := strings.Join(config.Expand(f, strings.Fields(tt.in)), " "); got != tt.want {
			t.Errorf("%q became %q, want %q", tt.in, got, tt.want)
		}
	}
}

// A flag that is misspelt, cut short or half remembered is named; what is like none is left alone.
func TestSimilar(t *testing.T) {
	_, f := flags()
	for name, want := range map[string]string{
		"gpu-memory-utilisation": "gpu-memory-utilization",
		"--max_model_length":     "max-model-len",
		"max-modellen":           "max-model-len",
		"tensor-parallel":        "tensor-parallel-size",
		"tensor-paralell-size":   "tensor-parallel-size",
		"served-model-names":     "served-model-name",
		"Port":                   "port",
		"x":                      "",
		"frobnicate":             "",
		"":                       "",
	} {
		if got := config.Similar(f, name); got != want {
			t.Errorf("%q is like %q, want %q", name, got, want)
		}
	}
	err := config.FlagError(f, f.Parse([]string{"--gpu-memory-utilisation", "0.9"}))
	if err == nil || !strings.HasSuffix(err.Error(), "did you mean --gpu-memory-utilization?") {
		t.Errorf("error %v", err)
	}
	err = config.FlagError(f, f.Parse([]string{"-max-model-len", "4k"}))
	if err == nil || !strings.HasSuffix(err.Error(), "did you mean --max-model-len?") {
		t.Errorf("error %v", err)
	}
	err = config.FlagError(f, f.Parse([]string{"--enable-prefix-caching=yes"}))
	if err == nil || err.Error() != `--enable-prefix-caching "yes": invalid syntax` {
		t.Errorf("error %v", err)
	}
}

// The command line wins over the file, the file over the environment, that over defaults.
func TestFillPrecedence(t *testing.T) {
	t.Setenv("EAGLERAY_MAX_NUM_SEQS", "8")
	t.Setenv("EAGLERAY_BLOCK_SIZE", "32")
	t.Setenv("EAGLERAY_MAX_MODEL_LEN", "64")
	t.Setenv("EAGLERAY_PORT", "tcp://10.0.0.1:8000") // as Kubernetes sets it
	t.Setenv("VLLM_API_KEY", "secret,with comma")
	file, err := config.ParseFile([]byte("max_num_seqs: 16\nblock-size: 64\nserved-model-name: " +
		"[a, b]\noverride-generation-config: {temperature: 0.5}\nenable-prefix-caching: " +
		"false\nrevision: 0123\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, f := flags()
	if err := f.Parse([]string{"--max-num-seqs", "4"}); err != nil {
		t.Fatal(err)
	}
	if err := config.Fill(f, "--config x", file); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string][2]any{
		"command line": {c.Schedule.MaxNumSeqs, 4},
		"file":         {c.Cache.BlockSize, 64},
		"environment":  {c.Model.MaxModelLen, 64},
		"default":      {c.Schedule.MaxNumBatchedTokens, 2048},
		"list":         {c.Model.ServedNames, []string{"a", "b"}},
		"mapping":      {c.Model.OverrideGenerationConfig, `{"temperature":0.5}`},
		"switch":       {c.Cache.PrefixCaching, false},
		"spelling":     {c.Model.Revision, "0123"},
		"port":         {c.Server.Port, 8000},
		"alias":        {c.Server.APIKeys, []string{"secret,with comma"}},
	} {
		if !reflect.DeepEqual(x[0], x[1]) {
			t.Errorf("%s: got %v, want %v", name, x[0], x[1])
		}
	}
	t.Setenv("EAGLERAY_API_KEY", "ours")
	c, f = flags()
	if err := config.Fill(f, "", nil); err != nil || !reflect.DeepEqual(c.Server.APIKeys,
		[]string{"ours"}) {
		t.Errorf("API keys %v, error %v", c.Server.APIKeys, err)
	}
}

// TestFillOpposites: --no-x of the command line wins over x of the file and of the environment, and
// the other way round.
func TestFillOpposites(t *testing.T) {
	for _, x := range []struct {
		args, file, variable string
		want                 bool
	}{
		{"--no-enable-prefix-caching", "enable-prefix-caching: true", "", false},
		{"--enable-prefix-caching", "no-enable-prefix-caching: true", "", true},
		{"--no-enable-prefix-caching", "", "EAGLERAY_ENABLE_PREFIX_CACHING", false},
		{"--enable-prefix-caching", "", "EAGLERAY_NO_ENABLE_PREFIX_CACHING", true},
		{"", "no-enable-prefix-caching: true", "EAGLERAY_ENABLE_PREFIX_CACHING", false},
		{"", "enable-prefix-caching: true", "EAGLERAY_NO_ENABLE_PREFIX_CACHING", true},
		{"", "", "EAGLERAY_NO_ENABLE_PREFIX_CACHING", false},
		{"", "", "EAGLERAY_DISABLE_PREFIX_CACHING", false},
		{"", "disable_prefix_caching: true", "", false},
		{"", "disable-prefix-caching: false", "", true},
		{"--disable-prefix-caching", "enable-prefix-caching: true", "", false},
	} {
		t.Run(x.args+x.file+x.variable, func(t *testing.T) {
			if x.variable != "" {
				t.Setenv(x.variable, "true")
			}
			file, err := config.ParseFile([]byte(x.file))
			if err != nil {
				t.Fatal(err)
			}
			c, f := flags()
			if err := f.Parse(config.Expand(f, strings.Fields(x.args))); err != nil {
				t.Fatal(err)
			}
			if err := config.Fill(f, "--config x", file); err != nil {
				t.Fatal(err)
			}
			if c.Cache.PrefixCaching != x.want {
				t.Errorf("prefix caching is %v", c.Cache.PrefixCaching)
			}
		})
	}
}

// TestOtherNames: a flag of the command line wins over another name of it in the file and in the
// environment, which stand for it where it is not given.
func TestOtherNames(t *testing.T) {
	t.Setenv("EAGLERAY_DATA_PARALLEL_ADDRESS", "environment")
	t.Setenv("EAGLERAY_DRAIN_TIMEOUT", "7")
	c, f := flags()
	if err := f.Parse([]string{"--distributed-executor-backend=uni"}); err != nil {
		t.Fatal(err)
	}
	if err := config.Fill(f, "", map[string][]string{"data-parallel-backend": {"mp"},
		"data-parallel-rpc-port": {"5"}}); err != nil {
		t.Fatal(err)
	}
	n := &c.Parallel.Nodes
	if c.Parallel.Backend != "uni" || n.MasterPort != 5 || n.Master != "environment" ||
		c.Server.ShutdownTimeoutSeconds != 7 {
		t.Errorf("%+v, %d s", c.Parallel, c.Server.ShutdownTimeoutSeconds)
	}
}

// TestRayAddress: who gives the address of a cluster means it. In the environment it says only
// where Ray is.
func TestRayAddress(t *testing.T) {
	for _, x := range []struct{ args, file, variable, want string }{
		{"--ray-address 10.0.0.1:6379", "", "", "ray"},
		{"", "ray-address: 10.0.0.1:6379", "", "ray"},
		{"--ray-address 10.0.0.1:6379", "distributed-executor-backend: ray", "", "ray"},
		{"--ray-address=", "", "", ""},
		{"", "", "RAY_ADDRESS", ""},
		{"", "", "EAGLERAY_RAY_ADDRESS", ""},
		{"--distributed-executor-backend mp", "", "EAGLERAY_RAY_ADDRESS", "mp"},
		{"--ray-address 10.0.0.1:6379 --distributed-executor-backend mp", "", "",
			"--ray-address 10.0.0.1:6379 with --distributed-executor-backend mp: only ray"},
		{"--ray-address 10.0.0.1:6379", "distributed-executor-backend: uni", "",
			"--ray-address 10.0.0.1:6379 with --distributed-executor-backend uni: only ray"},
	} {
		t.Run(x.args+x.file+x.variable, func(t *testing.T) {
			for _, name := range []string{"RAY_ADDRESS", "EAGLERAY_RAY_ADDRESS"} {
				t.Setenv(name, map[bool]string{true: "10.0.0.2:6379"}[name == x.variable])
			}
			file, err := config.ParseFile([]byte(x.file))
			if err != nil {
				t.Fatal(err)
			}
			c, f := flags()
			if err := f.Parse(strings.Fields(x.args)); err != nil {
				t.Fatal(err)
			}
			if err := config.Fill(f, "--config x", file); err != nil {
				var mistake *config.UsageError
				if !errors.As(err, &mistake) || !strings.HasPrefix(err.Error(), x.want) ||
					x.want == "" {
					t.Error(err)
				}
			} else if c.Parallel.Backend != x.want {
				t.Errorf("%q instead of %q", c.Parallel.Backend, x.want)
			}
		})
	}
}

func TestFillMistakes(t *testing.T) {
	for raw, want := range map[string]string{
		"no-such-flag: 1":   `"no-such-flag" is not a flag of this command`,
		"blok-size: 32":     `(did you mean block-size?)`,
		"config: x":         `"config" is not a flag`,
		"block-size: many":  "block-size",
		"cpu-offload-gb: 4": "cpu-offload-gb",
	} {
		_, f := flags()
		file, err := config.ParseFile([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		err = config.Fill(f, "--config x.yaml", file)
		var mistake *config.UsageError
		if !errors.As(err, &mistake) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "x.yaml") {
			t.Errorf("%s: error %v", raw, err)
		}
	}
	t.Setenv("EAGLERAY_BLOCK_SIZE", "many")
	_, f := flags()
	if err := config.Fill(f, "", nil); err == nil || !strings.Contains(err.Error(),
		"EAGLERAY_BLOCK_SIZE") {
		t.Errorf("error %v", err)
	}
}

func TestParseFileMistakes(t *testing.T) {
	for raw, want := range map[string]string{
		"- a\n- b":                           "not a mapping",
		"just text":                          "not a mapping",
		"a: 1\na: 2":                         "there twice",
		"max-model-len: 1\nmax_model_len: 2": "line 2: max-model-len is there twice",
		"port:":                              "port: has no value",
		"port: [1, ~]":                       "port: has no value",
		"a.b:":                               "line 1: a.b: has no value",
		"a.b: 1\na: {}":                      "a is there as a whole",
		"{a: 1}: 2":                          "not the name",
		"a: [\n":                             "",
	} {
		if v, err := config.ParseFile([]byte(raw)); err == nil || !strings.Contains(err.Error(),
			want) {
			t.Errorf("%q gave %v, error %v", raw, v, err)
		}
	}
	v, err := config.ParseFile([]byte("some_flag.a_b.c: 1k\nsome-flag.d: [x]\nsome_flag.e+: y"))
	if got := fmt.Sprint(v); err != nil ||
		got != `map[some-flag:[{"a_b":{"c":1000},"d":["x"],"e":["y"]}]]` {
		t.Errorf("%s, error %v", got, err)
	}
	for _, raw := range []string{"", "\n# nothing\n", "~", "---\n"} {
		if v, err := config.ParseFile([]byte(raw)); err != nil || len(v) != 0 {
			t.Errorf("%q gave %v, error %v", raw, v, err)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	for _, s := range []string{"a: 1", "a: [1, x]", "a: {b: 1}", "a: &x 1\nb: *x", "<<: {a: 1}",
		"a: .nan", "a: {b: .nan}", "a.b: 1\na.b.c: 2", "a=b.c: x", "? [a]\n: b", "\t"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		values, err := config.ParseFile(raw)
		if err != nil {
			return
		}
		for name := range values {
			if name == "" || strings.Contains(name, "_") {
				t.Errorf("flag name %q", name)
			}
		}
		// Whatever the file says, a flag set takes it or names the fault.
		_, flags := flags()
		_ = config.Fill(flags, "file", values)
	})
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"1", "4k", "4K", "25.6k", "1.5K", "9223372036854775807", "8388608T",
		"1e3k", "nank", ".k", "-1", "k", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, flags := flags()
		err := flags.Set("kv-cache-memory-bytes", s)
		if got := c.Cache.MemoryBytes; err == nil && got < 1 {
			t.Errorf("%q became %d", s, got)
		}
		if err != nil && !strings.Contains(err.Error(), "--kv-cache-memory-bytes") {
			t.Errorf("error %q does not name the flag", err)
		}
	})
}

func TestHumanSizes(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "1k": 1000, "1K": 1024, "25.6k": 25600, "1.1k": 1100, "0.5m": 500000, "2M": 2 << 20,
		"3G": 3 << 30, "2g": 2e9, "1T": 1 << 40, "1t": 1e12,
	} {
		c, f := flags()
		if err := f.Set("max-request-body-bytes", s); err != nil ||
			c.Server.MaxRequestBodyBytes != want {
			t.Errorf("%s is %d, want %d (error %v)", s, c.Server.MaxRequestBodyBytes, want, err)
		}
	}
	for _, s := range []string{"", "k", "1.5K", "1kk", "0x1p3k", "1_0", "infk", "nank", "9000000T",
		"1e9", "-3k", " 1", "99999999999t"} {
		_, f := flags()
		if f.Set("max-request-body-bytes", s) == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

// TestKeyFile reads keys from files, beside those of the command line.
func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("# of the team\n first,1 \n\nsecond\r\n")
	c, err := parse("--api-key", "own", "--api-key-file", path)
	if want := []string{"own", "first,1", "second"}; err != nil || !slices.Equal(c.Server.APIKeys,
		want) {
		t.Errorf("%q, %v", c.Server.APIKeys, err)
	}
	for text, want := range map[string]string{"# none\n": "has no key",
		strings.Repeat("k", 1<<20+1): "more than 1048576 bytes"} {
		put(text)
		if _, err := parse("--api-key-file", path); err == nil || !strings.Contains(err.Error(),
			want) || strings.Contains(err.Error(), "kk") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestKeysWithWhiteSpace refuses keys that no header has as they are: one with the end of its line,
// from a variable that was made of a file. A file of keys may have such ends.
func TestKeysWithWhiteSpace(t *testing.T) {
	for _, key := range []string{"sk-1\n", "sk-1 ", " sk-1", "sk-1\u00a0", "sk-1\r", "sk\n1",
		"sk\x7f1"} {
		if _, err := parse("--api-key", key); err == nil || !strings.Contains(err.Error(),
			"--api-key has a key that begins or ends with white space") ||
			strings.Contains(err.Error(), "sk") {
			t.Errorf("%q: %v", key, err)
		}
	}
	if _, err := parse("--api-key", "my key"); err != nil {
		t.Errorf("white space within: %v", err)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("sk-1 \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := parse("--api-key-file", path); err != nil || !slices.Equal(c.Server.APIKeys,
		[]string{"sk-1"}) {
		t.Errorf("from a file: %v", err)
	}
}
