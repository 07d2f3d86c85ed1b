"""Projects with faults, in a shell that can be forked."""
