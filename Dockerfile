# The image of every Rightslice process. Build it from the checkout: docker build -t rightslice .
FROM python:3.13-slim AS build
WORKDIR /src

# The build tools stay in this stage; what runs comes from its own lock, wheels with known hashes only.
COPY requirements/build.txt requirements/run.txt requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt
RUN python -m venv --without-pip /opt/rightslice \
 && /opt/build/bin/pip --python /opt/rightslice/bin/python install \
      --no-cache-dir --require-hashes --only-binary :all: -r requirements/run.txt

COPY pyproject.toml README.md LICENSE ./
COPY webhook webhook
COPY policies policies
COPY examples examples
RUN /opt/build/bin/hatchling build -t wheel -d dist \
 && /opt/build/bin/pip --python /opt/rightslice/bin/python install --no-cache-dir --no-index --no-deps dist/*.whl

FROM python:3.13-slim
COPY --from=build /opt/rightslice /opt/rightslice
ENV PATH=/opt/rightslice/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can check runAsNonRoot without reading the image's user table.
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["rightslice"]
CMD ["--help"]
