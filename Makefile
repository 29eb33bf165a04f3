# Entry points; the work is done by the files in scripts/.
.PHONY: help run test check prove figures format clean
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

help:
	@echo "make run     build the command line and run one layer of the small checkpoint (more options: ARGS=\"--ranks 2\")"
	@echo "make test    every check, stage by stage, with seconds; under 25 minutes on 2 cores (some: STAGES=\"tidy cuda\")"
	@echo "make check   format, includes, unit and contract tests; under 5 minutes"
	@echo "make prove   the promises of the foundation, one line each with its figure; under 15 minutes"
	@echo "make figures the tables and the plot of H200 figures, from bench/results/h200.jsonl"
	@echo "make format  rewrite C++, CUDA and Python sources in the project's style"
	@echo "make clean   remove build/"

run:
	@scripts/run.sh $(ARGS)

test:
	@scripts/test.sh $(or $(STAGES),all)

check:
	@scripts/test.sh check

prove:
	@scripts/prove.sh

figures:
	@bench/plot.py

format:
	@scripts/format.sh --write

clean:
	rm -rf build
