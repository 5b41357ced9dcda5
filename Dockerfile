FROM python:3.11-slim
WORKDIR /kvdist
COPY . .
RUN pip install --quiet --no-cache-dir -c constraints.txt '.[serve,ucx]' \
 && useradd --system kvdist \
 && mkdir -p /var/cache/kvdist \
 && chown kvdist /var/cache/kvdist
USER kvdist
ENV XDG_CACHE_HOME=/var/cache
ENTRYPOINT ["kvdist"]
CMD ["--help"]
