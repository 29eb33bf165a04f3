#!/bin/sh
# Stands for the memory-order mutants in builds without ThreadSanitizer, where nothing could see them.
echo "SKIPPED: mutants of the memory order show only under ThreadSanitizer; configure with -DMEGAMOE_SANITIZE=thread"
exit 77
