"""What every layer uses: units, records as JSON, clocks, child processes, streams, progress."""
