# SPDX-License-Identifier: MIT
# Two ranks, each on a "host" of its own: a network namespace with one core of this machine. A veth pair with a token
# bucket on both ends joins them. overlap.sh and layouts.sh source this file, after they have set `dir`, the folder for
# what it writes. Needs root and iproute2. All traffic stays inside the namespaces.
#
#   make_hosts             makes the namespaces; remove_hosts removes them
#   throttle RATE          limits the link, or with `none` does not
#   on_both COMMAND...     the command as two ranks, one on each host; its output goes to $dir/log and is printed if it
#                          fails
#
# A network card cuts packets of up to 64 KiB into frames and checks them; here the kernel would have to do that on
# these cores. So the links let packets of GSO_BYTES (32768) pass whole. GSO_BYTES=0 leaves frames of 1500 bytes; then
# moving 60 MB/s both ways takes two thirds of both cores, which no program can hide.
gso=${GSO_BYTES:-32768}
tag=$$
a=ta$tag
b=tb$tag

remove_hosts() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
}

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
        [ "$gso" = 0 ] || ip -n "$ns" link set dev "v$side$tag" gso_max_size "$gso"
    done
    printf '192.168.78.1 slots=1\n192.168.78.2 slots=1\n' >"$dir/hosts"
    cat >"$dir/agent" <<AGENT
#!/usr/bin/env bash
host=\$1
shift
case \$host in 192.168.78.1) ns=$a core=0 ;; *) ns=$b core=1 ;; esac
exec taskset -c \$core ip netns exec \$ns unshare -u bash -c "hostname host-\$ns; \$*"
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

# A command on two ranks, one on each host.
on_both() { # command
    taskset -c 0 ip netns exec "$a" unshare -u bash -c "hostname host-$a; exec \"\$@\"" bash \
        mpirun --allow-run-as-root -np 2 --bind-to none --hostfile "$dir/hosts" --mca plm_rsh_agent "$dir/agent" \
        --mca oob_tcp_if_include 192.168.78.0/24 --mca pml ob1 --mca btl self,tcp \
        --mca btl_tcp_if_include 192.168.78.0/24 "$@" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
}
