"""What sinks have in common: staging, ledgers, retries, refused rows."""
