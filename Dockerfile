# The image of every Rightslice process: `serve webhook` and the other roles. Build it from the checkout:
#   docker build -t rightslice:0.1.0 .
# Both bases bring Python 3.11 on Debian 12: what is installed in one runs in the other. They are pinned by the digest of
# the index of all platforms. To update one, write what this prints, or name another base with --build-arg:
#   docker buildx imagetools inspect gcr.io/distroless/python3-debian12:nonroot --format '{{.Manifest.Digest}}'
ARG BUILD=docker.io/library/python:3.11-slim-bookworm@sha256:0a310eeecf4e1f5a0743f9a6520c90c88d089c903ca5fd283f501e3a805f5f89
ARG RUN=gcr.io/distroless/python3-debian12:nonroot@sha256:7d1042ce588ab97019fe95c24ffca7bc5a82ccdac572511d5e09bda4435c89c5

FROM ${BUILD} AS build
WORKDIR /src

# The build tools stay in this stage; what runs comes from its own lock, wheels with known hashes only.
COPY requirements/build.txt requirements/all.txt requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r requirements/build.txt
RUN /opt/build/bin/pip install \
      --no-cache-dir --no-deps --require-hashes --only-binary :all: --target /opt/rightslice -r requirements/all.txt

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
