#!/usr/bin/env bash
# Fuzzes every reader for a while: fuzz/run.sh SECONDS_PER_TARGET [TARGET...]
#
# Works on the stable toolchain: coverage comes from LLVM's own pass, which rustc passes on (`instrument`), instead of
# from -Zsanitizer.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:?usage: run.sh SECONDS_PER_TARGET [TARGET...]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors npy npz parquet arrow pickle onnx zip)
host=$(rustc -vV | sed -n 's/^host: //p')

# The seeds are made by the formats' own writers, in an ordinary build.
TRUESHOT_SEEDS=$PWD/corpus cargo test --release --quiet --manifest-path ../Cargo.toml --workspace --test seeds -- --ignored

# Pickles only Python writes; the vision crate's tests keep some.
mkdir -p corpus/pickle
for seed in ../crates/vision/tests/published/{mini,tiered,metaopt}*/*.p*kl* ../crates/vision/tests/published/cifar-100-python/meta; do
    cp "$seed" "corpus/pickle/$(basename "$(dirname "$seed")")-$(basename "$seed")"
done

# Models are written by the vision crate's tests.
mkdir -p corpus/onnx
cp ../crates/vision/tests/models/*.onnx corpus/onnx/

export RUSTFLAGS="--cfg fuzzing" RUSTC_WRAPPER=$PWD/instrument
# One pool thread: coverage of a run must not depend on which thread was first.
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
    # Where decoders panicked and the net caught them: each is a check our gates could make.
    grep -a '^caught: ' "$log" | sort | uniq -c | sort -rn | head -n 20 || true
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; inputs are under fuzz/artifacts/" >&2
    exit 1
fi
