#!/bin/sh
# The service is neither enabled nor started: it is for the administrator to say which model it
# serves.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
