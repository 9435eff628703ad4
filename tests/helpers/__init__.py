"""What several tests share: small nets, random problems and schedules, the exhaustive oracle."""
