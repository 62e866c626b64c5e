#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# How well communication hides behind compute, and what planning gains: two ranks, each on a "host" of its own (a network
# namespace), joined by a veth pair with a token bucket on both ends. Runs the same training with the eager and the
# planned engine, throttled and not, in turn, and prints seconds per step and their ratios. A benchmark, never a test.
#
#   overlap.sh TITAN [RATE …] -- [titan train options]      e.g. overlap.sh build/titan 200mbit 1gbit -- --model.flavor=debugmodel
#
# Environment: ROUNDS (3) pairs per rate, STEPS (8) a run, of which the first two do not count.
# Needs root, iproute2 and Open MPI. All traffic stays inside the namespaces, which are removed at the end.
set -euo pipefail

titan=$(realpath "$1")
shift
rates=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    rates+=("$1")
    shift
done
[ $# -gt 0 ] && shift
[ ${#rates[@]} -gt 0 ] || rates=(200mbit)
rounds=${ROUNDS:-3}
steps=${STEPS:-8}
tag=$$
a=ta$tag
b=tb$tag
dir=$(mktemp -d)

cleanup() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT

make_hosts() {
    ip netns add "$a"
    ip netns add "$b"
    ip link add "va$tag" type veth peer name "vb$tag"
    ip link set "va$tag" netns "$a"
    ip link set "vb$tag" netns "$b"
    ip -n "$a" addr add 192.168.78.1/24 dev "va$tag"
    ip -n "$b" addr add 192.168.78.2/24 dev "vb$tag"
    for side in a b; do
        ns=${!side}
        ip -n "$ns" link set lo up
        ip -n "$ns" link set "v$side$tag" up
    done
    printf '192.168.78.1 slots=1\n192.168.78.2 slots=1\n' >"$dir/hosts"
    cat >"$dir/agent" <<AGENT
#!/usr/bin/env bash
host=\$1
shift
case \$host in 192.168.78.1) ns=$a ;; *) ns=$b ;; esac
exec ip netns exec \$ns unshare -u bash -c "hostname host-\$ns; \$*"
AGENT
    chmod +x "$dir/agent"
}

throttle() { # RATE, or none
    for side in a b; do
        ns=${!side}
        ip netns exec "$ns" tc qdisc del dev "v$side$tag" root 2>/dev/null || true
        [ "$1" = none ] || ip netns exec "$ns" tc qdisc add dev "v$side$tag" root tbf rate "$1" burst 64kb latency 50ms
    done
}

# Median seconds of a step, without the first two.
run() { # ENGINE, options
    local engine=$1 out=$dir/run
    shift
    rm -rf "$out"
    ip netns exec "$a" unshare -u bash -c "hostname host-$a; exec \"\$@\"" bash \
        mpirun --allow-run-as-root -np 2 --hostfile "$dir/hosts" --mca plm_rsh_agent "$dir/agent" \
        --mca oob_tcp_if_include 192.168.78.0/24 --mca pml ob1 --mca btl self,tcp \
        --mca btl_tcp_if_include 192.168.78.0/24 \
        "$titan" train --job.dump_folder="$out" --parallelism.fsdp_engine="$engine" --training.steps="$steps" \
        --metrics.log_freq=1 --checkpoint.enable=false --validation.enable=false "$@" >"$dir/log" 2>&1 ||
        { cat "$dir/log" >&2; exit 1; }
    python3 - "$out/metrics.jsonl" <<'PY'
import json, statistics, sys
steps = [r for r in map(json.loads, open(sys.argv[1])) if r.get("type") == "step"]
print(statistics.median(r["step_time_s"] for r in steps[2:]))
PY
}

grep -m1 'model name' /proc/cpuinfo
make_hosts
printf '%-10s %10s %10s %14s\n' rate "eager s" "planned s" "eager/planned"
for rate in none "${rates[@]}"; do
    throttle "$rate"
    for ((i = 0; i < rounds; i++)); do
        eager=$(run eager "$@")
        planned=$(run planned "$@")
        awk -v r="$rate" -v e="$eager" -v p="$planned" 'BEGIN { printf "%-10s %10.4f %10.4f %14.3f\n", r, e, p, e / p }'
    done
done
