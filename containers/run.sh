#!/bin/sh
# Run a command where 127.0.0.1:4500 is the server of the service `fdb`, as the cluster's file says.
set -eu
socat TCP-LISTEN:4500,bind=127.0.0.1,fork,reuseaddr TCP:fdb:4500 &
exec "$@"
