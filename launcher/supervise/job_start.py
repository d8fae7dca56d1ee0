"""Start a submitted run inside its SLURM job: batch scripts that an earlier podrun has written name this module."""

from __future__ import annotations

from ..engines.slurm.job_start import main

if __name__ == "__main__":
    main()
