#!/bin/bash
cd /app/notes && tar -czf ../notes.tar.gz -- $(find . -maxdepth 1 -type f -size +0 -printf '%f\n' | sort)
