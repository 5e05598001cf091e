#!/bin/bash
# Starts a program in a container: the command line of `apptainer exec`, carried out by Linux's own means, as root.
# The image is a folder with a root tree, an overlay a folder with `upper`, and the container is read-only.
set -euo pipefail
die() { echo "FATAL: $*" >&2 && exit 255; }

[ "$1" = exec ] || die "unknown command: $1"
[ "${SCALEWISE_NEW_MOUNTS:-}" = "$PPID.$$" ] ||
    SCALEWISE_NEW_MOUNTS=$PPID.$$ exec unshare --mount --propagation private "$0" "$@"
unset SCALEWISE_NEW_MOUNTS
shift
layers=() binds=(/dev /proc /sys /tmp /etc/hosts /etc/passwd /etc/resolv.conf)
while [[ $1 == --* ]]; do
    case $1 in
    --nv) ;;
    --overlay=*:ro) layers+=("${1#--overlay=}") ;;
    --bind=*) binds+=("${1#--bind=}") ;;
    --pwd=*) folder=${1#--pwd=} ;;
    *) die "unknown flag: $1" ;;
    esac
    shift
done
image=$1
shift
lower=
for layer in "${layers[@]}"; do
    [ -d "${layer%:ro}/upper" ] || die "could not open overlay $layer"
    lower+="${layer%:ro}/upper:"
done
[ -d "$image" ] || die "could not open image $image: no such file or directory"

# changes would go to memory, and only the places for binds do
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$lower$image,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
for bind in "${binds[@]}"; do
    from=${bind%%:*} to=/mnt/root${bind##*:}
    [ -e "$from" ] || die "while mounting $from: no such file or directory"
    if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}" && touch "$to"; fi
    mount --rbind "$from" "$to"
done
mount -o remount,bind,ro /mnt/root
# shellcheck disable=SC2016  # for the shell inside
exec chroot /mnt/root /bin/bash -c 'cd -- "$1" && shift && exec "$@"' container "$folder" "$@"
