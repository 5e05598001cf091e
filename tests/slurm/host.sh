#!/bin/bash
# The first process of one host of the lab, inside the host's own namespaces: host.sh HOST FOLDER
set -euo pipefail
host=$1 folder=$2

# what lab.py did not live to remember, nobody would end
for _ in $(seq 1500); do
    [ -s "$folder/run/$host.pid" ] && break
    sleep 0.02
done
[ -s "$folder/run/$host.pid" ] || exit 1

hostname "$host"
mount --bind "$folder/etc/hosts" /etc/hosts
# SLURM_CONF alone is not enough: Snakemake's job steps strip every SLURM_ variable
mount --bind "$folder/etc" /etc/slurm
ip link set lo up

if [ "$host" = head ]; then
    # the switch that lab.py plugs the nodes into; a fixed address keeps the nodes' ARP tables valid
    ip link add br0 address 02:00:0a:63:00:01 type bridge
    ip addr add 10.99.0.1/24 dev br0
    ip link set br0 up
    # in memory, so that 60 new tables wait for no disk, and gone with this namespace
    mount -t tmpfs -o size=1g tmpfs "$folder/database"
    touch "$folder/run/head.ready"
    exec sleep infinity
fi

mount -t tmpfs -o size=2g tmpfs /dev/shm
for _ in $(seq 5000); do # lab.py plugs the cable in from outside
    ip -4 addr show dev eth0 2>/dev/null | grep -q inet && break
    sleep 0.02
done
SLURM_CONF=$folder/etc/slurm.conf slurmd -D &
wait # as process 1 of the node, also reaps what its jobs leave behind
exec sleep infinity
