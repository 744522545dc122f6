# The image of every Rightslice process: `serve webhook`, and the roles beside it. Build it from the checkout:
#   docker build -t rightslice:0.1.0 .
# The release workflow names both bases by digest; for a build of your own that can be repeated, do the same:
#   --build-arg BUILD=docker.io/library/python:3.11-slim-bookworm@sha256:...
#   --build-arg RUN=gcr.io/distroless/python3-debian12:nonroot@sha256:...
# Both bring Python 3.11 on Debian 12: what is installed in one runs in the other.
ARG BUILD=docker.io/library/python:3.11-slim-bookworm
ARG RUN=gcr.io/distroless/python3-debian12:nonroot

FROM ${BUILD} AS build
WORKDIR /src

# The build tools stay in this stage; what runs comes from its own lock, wheels with known hashes only.
COPY requirements/build.txt requirements/agent.txt requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt
RUN /opt/build/bin/pip install \
      --no-cache-dir --require-hashes --only-binary :all: --target /opt/rightslice -r requirements/agent.txt

COPY pyproject.toml README.md LICENSE ./
COPY webhook webhook
COPY policies policies
COPY examples examples
COPY manifests manifests
RUN /opt/build/bin/hatchling build -t wheel -d dist \
 && /opt/build/bin/pip install --no-cache-dir --no-index --no-deps --target /opt/rightslice dist/*.whl \
 && rm -rf /opt/rightslice/bin

# No shell, no compiler, no package manager: an interpreter, its libraries, and what was installed above.
FROM ${RUN}
COPY --from=build /opt/rightslice /opt/rightslice
ENV PYTHONPATH=/opt/rightslice \
    PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can check runAsNonRoot without reading the image's user table.
USER 65532:65532
WORKDIR /
EXPOSE 8443
ENTRYPOINT ["/usr/bin/python3", "-m", "webhook.cli"]
CMD ["--help"]
