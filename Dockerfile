# gnomon serve as an image: docker build -t gnomon . && docker run -p 127.0.0.1:8000:8000 -e GNOMON_SERVE_TOKEN=secret gnomon
FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[serve,mcp]'
ENV GNOMON_CACHE=/tmp/gnomon
EXPOSE 8000
ENTRYPOINT ["gnomon"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
