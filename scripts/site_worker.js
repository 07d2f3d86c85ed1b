// Browsers start no worker from a file on the disk. There, the search's worker runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inside);
        script.onerror = (error) => this.onerror?.(error);
        inside.document.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then((inside) => setTimeout(() => inside.onmessage?.({ data: structuredClone(data) })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
