#!/usr/bin/env bash
# Fuzzes every reader of files for some time: fuzz/run.sh SECONDS_PER_TARGET [TARGET...]
#
# Each target is a program of libFuzzer (fuzz_targets/), which changes seed files in corpus/ and keeps the inputs that
# reach new code. Inputs that make a reader fail are stored in artifacts/. Works on the stable toolchain: coverage
# counters come from options that rustc passes to LLVM (`instrument`), instead of from -Zsanitizer.
#
#   SEED_FEATURES=..   Cargo features of the ordinary build that writes the seeds: those of a build that exists already
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:?usage: run.sh SECONDS_PER_TARGET [TARGET...]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors npy npz parquet arrow pickle onnx zip)
host=$(rustc -vV | sed -n 's/^host: //p')

# Ignored tests of core and vision write a small valid file of every format, in an ordinary build.
TRUESHOT_SEEDS=$PWD/corpus cargo test --release --quiet --manifest-path ../Cargo.toml --workspace \
    --features "${SEED_FEATURES:-}" --test seeds -- --ignored

# Only Python writes pickles; the tests of the vision crate have some.
mkdir -p corpus/pickle
for seed in ../crates/vision/tests/published/{mini,tiered,metaopt}*/*.p*kl* ../crates/vision/tests/published/cifar-100-python/meta; do
    cp "$seed" "corpus/pickle/$(basename "$(dirname "$seed")")-$(basename "$seed")"
done

# The tests of the vision crate also have ONNX models.
mkdir -p corpus/onnx
cp ../crates/vision/tests/models/*.onnx corpus/onnx/

export RUSTFLAGS="--cfg fuzzing" RUSTC_WRAPPER=$PWD/instrument
# One thread: the coverage of an input must not depend on the order in which threads run.
export RAYON_NUM_THREADS=1

cargo build --locked --release --target "$host" --bins
binaries=target/$host/release

failed=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for target in "${targets[@]}"; do
    echo "== $target, $seconds s"
    mkdir -p "artifacts/$target"
    "$binaries/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
        -seed="$RANDOM$RANDOM" -print_final_stats=1 >"$log" 2>&1 || failed+=("$target")
    grep -av '^caught: ' "$log" | tail -n 12
    # Panics of third-party decoders that `guard::caught` turned into errors: each is a check that a reader could make
    # first.
    grep -a '^caught: ' "$log" | sort | uniq -c | sort -rn | head -n 20 || true
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; inputs are under fuzz/artifacts/" >&2
    exit 1
fi
