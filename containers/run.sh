#!/bin/sh
# Run a command where 127.0.0.1:$FDB_PORT is the server of the service `fdb`, as the cluster's file says.
set -eu
port=${FDB_PORT:-4500}
[ "$port" = 4500 ] || echo "docker:docker@127.0.0.1:$port" > /home/jovyan/fdb.cluster
socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,reuseaddr" "TCP:fdb:$port" &
exec "$@"
