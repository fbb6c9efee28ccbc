#!/bin/bash
# A consumer for a small machine: bash and coreutils only, over the agents' protocol.
#
#   fdbqueue agents serve --url file:shop                        # on the machine with the queue
#   examples/agent.sh 127.0.0.1 4711 5 'cat > /dev/ttyUSB0'      # here: run the command once for each item of type 5
#   ONCE=1 examples/agent.sh ...                                 # end when there is no item
#
# Data is confirmed when the command ends with 0. If it fails, or this machine loses its power, the lock ends and another
# agent gets the data.
set -u
host=$1 port=$2 type=$3 command=$4

say() { printf '%s\n' "$1" >&3; }
hear() { IFS= read -r -t 60 -u 3 line && line=${line%$'\r'}; }
expect() { hear && [ "$line" = "$1" ]; }

begin() { # Open a dialog as an agent of the type.
  exec 3<> "/dev/tcp/$host/$port" || return 1
  say 'Hi.' && expect 'Hi.' &&
    say 'I speak SCS Queue protocol version 0.01.' && expect 'OK.' &&
    say "I'm agent of type number $type." && expect 'OK.'
}
end() { say 'Bye.' 2> /dev/null; exec 3>&-; }

receive() { # Store the next item in $file and its ID in $id.
  begin && say 'I want to receive.' && expect 'OK.' || return 1
  hear && [[ $line =~ ^Data\ size\ is\ ([0-9]+)\.\ Data\ ID\ is\ ([0-9]+)\.$ ]] || return 1
  local size=${BASH_REMATCH[1]}
  id=${BASH_REMATCH[2]}
  say 'OK.' && expect 'Data:' || return 1
  head -c "$size" <&3 > "$file"
  expect '.' && [ "$(stat -c %s "$file")" = "$size" ] && say 'OK.' && expect 'Data is locked.'
}

confirm() { begin && say "I confirm a success in processing data, which ID is $id." && expect 'OK.'; }

file=$(mktemp)
trap 'rm -f "$file"' EXIT
while true; do
  if receive; then
    end
    if bash -c "$command" < "$file"; then confirm || echo "item $id was done, and not confirmed" >&2; end; fi
  else
    end 2> /dev/null
    [ -n "${ONCE:-}" ] && exit 0
    sleep 1
  fi
done
