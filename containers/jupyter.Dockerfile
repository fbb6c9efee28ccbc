# Jupyter with fdbqueue, Spark's Java and the FoundationDB client library of the very server image it talks to.
FROM foundationdb/foundationdb:7.3.77 AS fdb

FROM python:3.12.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

COPY --from=fdb /usr/lib/libfdb_c.so /usr/lib/libfdb_c.so
COPY --from=fdb /usr/bin/fdbcli /usr/bin/fdbcli

RUN useradd --create-home --uid 1000 jovyan
WORKDIR /home/jovyan/fdbqueue

# The dependencies first: they change less often than the code, and take most of the time.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir fdbqueue layers \
    && touch fdbqueue/__init__.py layers/__init__.py \
    && pip install --no-cache-dir -e '.[notebook]'
COPY fdbqueue ./fdbqueue
COPY layers ./layers
COPY containers/fdb.cluster /home/jovyan/fdb.cluster
# The client library writes changes of the coordinators back into the file, so it must be the user's.
RUN chown -R jovyan:jovyan /home/jovyan

USER jovyan
WORKDIR /home/jovyan
# Listens inside the containers' own network; compose publishes the port on the host's loopback only.
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--notebook-dir=/home/jovyan/notebooks"]
