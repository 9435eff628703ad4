"""What a device is and what things cost there: profiles, cost model, this host."""
