# `conformance` with torch for a CPU:
#
#   docker build --tag conformance https://github.com/trainer-conformance/trainer-conformance.git
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" conformance run my_trainer.py
#
# For a GPU, build with `--build-arg PIP_EXTRA_INDEX_URL=`, and run with `--gpus all`.
FROM python:3.12-slim

ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY . /opt/conformance
RUN pip install --no-cache-dir -c /opt/conformance/constraints.txt /opt/conformance

# The user of `docker run --user` has neither a name nor a home.
ENV HOME=/tmp USER=conformance
WORKDIR /work
ENTRYPOINT ["conformance"]
CMD ["run"]
